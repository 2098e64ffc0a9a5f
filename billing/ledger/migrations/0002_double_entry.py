from django.db import migrations
from django.db.migrations.operations.special import RunSQL

from billing.database import append_only, tenant_reads
from inference.database import privileges

# Deferred to the commit: the entries of a transaction are inserted one after the other. The declared count makes it impossible to
# add a balanced pair to a transaction that stands already.
BALANCED = """
CREATE FUNCTION ledger_check_balance() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    checked bigint;
    found_count bigint;
    found_sum numeric;
    strangers bigint;
    declared record;
BEGIN
    IF TG_TABLE_NAME = 'ledger_entry' THEN checked := NEW.transaction_id; ELSE checked := NEW.id; END IF;
    SELECT entry_count, tenant_id INTO declared FROM ledger_transaction WHERE id = checked;
    SELECT count(*), coalesce(sum(e.amount_nano_usd), 0),
           count(*) FILTER (WHERE e.tenant_id <> declared.tenant_id OR a.tenant_id <> declared.tenant_id)
      INTO found_count, found_sum, strangers
      FROM ledger_entry e JOIN ledger_account a ON a.id = e.account_id WHERE e.transaction_id = checked;
    IF found_count <> declared.entry_count OR found_sum <> 0 OR strangers <> 0 THEN
        RAISE EXCEPTION 'ledger transaction %: % of % entries, sum %, % of another tenant',
            checked, found_count, declared.entry_count, found_sum, strangers USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$
"""


class Migration(migrations.Migration):
    dependencies = [("ledger", "0001_initial")]

    operations = [
        RunSQL(
            sql=[
                BALANCED,
                "CREATE CONSTRAINT TRIGGER ledger_entry_balance AFTER INSERT ON ledger_entry "
                "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION ledger_check_balance()",
                "CREATE CONSTRAINT TRIGGER ledger_transaction_balance AFTER INSERT ON ledger_transaction "
                "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION ledger_check_balance()",
            ],
            reverse_sql=[
                "DROP TRIGGER ledger_entry_balance ON ledger_entry",
                "DROP TRIGGER ledger_transaction_balance ON ledger_transaction",
                "DROP FUNCTION ledger_check_balance",
            ],
        ),
        append_only("ledger_account"),
        append_only("ledger_transaction"),
        append_only("ledger_entry"),
        tenant_reads("ledger_account"),
        tenant_reads("ledger_transaction"),
        tenant_reads("ledger_entry"),
        privileges("ledger_account", system="SELECT, INSERT"),
        privileges("ledger_transaction", system="SELECT, INSERT"),
        privileges("ledger_entry", system="SELECT, INSERT"),
    ]
