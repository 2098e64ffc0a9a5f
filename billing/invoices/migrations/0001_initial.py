import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='InvoiceSchedule',
            fields=[
                ('tenant_id', models.UUIDField(primary_key=True, serialize=False)),
                ('time_zone', models.CharField(max_length=64)),
                ('lines_up_to', models.BigIntegerField(default=0)),
            ],
            options={
                'db_table': 'invoices_schedule',
            },
        ),
        migrations.CreateModel(
            name='Invoice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tenant_id', models.UUIDField()),
                ('number', models.CharField(max_length=40, null=True, unique=True)),
                ('period_start', models.DateTimeField()),
                ('period_end', models.DateTimeField()),
                ('time_zone', models.CharField(max_length=64)),
                ('state', models.CharField(choices=[('draft', 'follows the usage of its period')], default='draft', max_length=8)),
                ('currency', models.CharField(default='USD', max_length=3)),
                ('total_nano_usd', models.BigIntegerField(default=0)),
                ('total_cents', models.BigIntegerField(default=0)),
                ('residual_nano_usd', models.BigIntegerField(default=0)),
                ('lines_up_to', models.BigIntegerField(default=0)),
                ('built_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'invoices_invoice',
                'constraints': [models.UniqueConstraint(condition=models.Q(('state', 'draft')), fields=('tenant_id', 'period_start'), name='invoice_draft_once'), models.CheckConstraint(condition=models.Q(('period_end__gt', models.F('period_start'))), name='invoice_period_forward'), models.CheckConstraint(condition=models.Q(('residual_nano_usd', django.db.models.expressions.CombinedExpression(models.F('total_nano_usd'), '-', django.db.models.expressions.CombinedExpression(models.F('total_cents'), '*', models.Value(10000000))))), name='invoice_residual_exact')],
            },
        ),
        migrations.CreateModel(
            name='InvoiceLine',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tenant_id', models.UUIDField()),
                ('project_id', models.UUIDField()),
                ('model', models.CharField(max_length=200)),
                ('service_tier', models.CharField(max_length=40)),
                ('meter', models.CharField(max_length=32)),
                ('cache_tier', models.CharField(max_length=8)),
                ('unit', models.CharField(max_length=20)),
                ('price_book', models.IntegerField()),
                ('unit_price_nano_usd', models.BigIntegerField()),
                ('unit_quantity', models.BigIntegerField()),
                ('quantity', models.DecimalField(decimal_places=0, max_digits=38)),
                ('requests', models.BigIntegerField()),
                ('amount_nano_usd', models.BigIntegerField()),
                ('amount_cents', models.BigIntegerField()),
                ('invoice', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='lines', to='invoices.invoice')),
            ],
            options={
                'db_table': 'invoices_line',
                'constraints': [models.UniqueConstraint(fields=('invoice', 'project_id', 'model', 'service_tier', 'meter', 'cache_tier', 'unit', 'price_book', 'unit_price_nano_usd', 'unit_quantity'), name='invoice_line_once')],
            },
        ),
    ]
