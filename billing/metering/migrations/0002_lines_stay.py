from django.db import migrations
from django.db.migrations.operations.special import RunSQL

from billing.database import append_only, tenant_reads
from inference.database import privileges

AMOUNT = """
ALTER TABLE metering_line ADD CONSTRAINT line_amount_exact CHECK (
    carry_in < unit_quantity AND unit_price_nano_usd >= 0
    AND amount_nano_usd = div(quantity::numeric * unit_price_nano_usd + carry_in, unit_quantity::numeric)
)
"""
TABLES = ("metering_tenant", "metering_remainder", "metering_request", "metering_line", "metering_fault", "metering_day")


class Migration(migrations.Migration):
    dependencies = [("metering", "0001_initial")]

    operations = [
        RunSQL(sql=AMOUNT, reverse_sql="ALTER TABLE metering_line DROP CONSTRAINT line_amount_exact"),
        append_only("metering_line"),
        *(tenant_reads(table) for table in TABLES),
        *(privileges(table) for table in TABLES if table != "metering_line"),
        privileges("metering_line", system="SELECT, INSERT"),
    ]
