from django.db import migrations
from django.db.migrations.operations.special import RunSQL

from inference.database import privileges

BOOK = """
CREATE FUNCTION pricing_book_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.published_at IS NOT NULL THEN
        RAISE EXCEPTION 'price book % is published: % refused', OLD.version, TG_OP USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$
"""

# FOR SHARE waits for a publication under way, and makes a publication wait: no price slips into a book after its check.
PRICE = """
CREATE FUNCTION pricing_price_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    book record;
BEGIN
    FOR book IN
        SELECT version, published_at FROM pricing_book
        WHERE (TG_OP <> 'INSERT' AND id = OLD.book_id) OR (TG_OP <> 'DELETE' AND id = NEW.book_id)
        FOR SHARE
    LOOP
        IF book.published_at IS NOT NULL THEN
            RAISE EXCEPTION 'price book % is published: % of a price refused', book.version, TG_OP
                USING ERRCODE = 'restrict_violation';
        END IF;
    END LOOP;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$
"""

TRUNCATE = """
CREATE FUNCTION pricing_refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% holds published prices: TRUNCATE refused', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$
"""


class Migration(migrations.Migration):
    dependencies = [("pricing", "0001_initial")]

    operations = [
        RunSQL(
            sql=[
                BOOK,
                PRICE,
                TRUNCATE,
                "CREATE TRIGGER pricing_book_guard BEFORE UPDATE OR DELETE ON pricing_book "
                "FOR EACH ROW EXECUTE FUNCTION pricing_book_guard()",
                "CREATE TRIGGER pricing_price_guard BEFORE INSERT OR UPDATE OR DELETE ON pricing_price "
                "FOR EACH ROW EXECUTE FUNCTION pricing_price_guard()",
                "CREATE TRIGGER pricing_book_no_truncate BEFORE TRUNCATE ON pricing_book "
                "FOR EACH STATEMENT EXECUTE FUNCTION pricing_refuse_truncate()",
                "CREATE TRIGGER pricing_price_no_truncate BEFORE TRUNCATE ON pricing_price "
                "FOR EACH STATEMENT EXECUTE FUNCTION pricing_refuse_truncate()",
            ],
            reverse_sql=[
                "DROP TRIGGER pricing_book_guard ON pricing_book",
                "DROP TRIGGER pricing_price_guard ON pricing_price",
                "DROP TRIGGER pricing_book_no_truncate ON pricing_book",
                "DROP TRIGGER pricing_price_no_truncate ON pricing_price",
                "DROP FUNCTION pricing_book_guard",
                "DROP FUNCTION pricing_price_guard",
                "DROP FUNCTION pricing_refuse_truncate",
            ],
        ),
        privileges("pricing_book"),
        privileges("pricing_price"),
    ]
