from django.db import migrations

from billing.database import tenant_reads
from inference.database import privileges

TABLES = ("invoices_schedule", "invoices_invoice", "invoices_line")


class Migration(migrations.Migration):
    dependencies = [("invoices", "0001_initial")]

    operations = [
        *(tenant_reads(table) for table in TABLES),
        *(privileges(table) for table in TABLES),
    ]
