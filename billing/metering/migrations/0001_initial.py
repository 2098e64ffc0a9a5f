import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('ledger', '0001_initial'),
        ('pricing', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='RatedRequest',
            fields=[
                ('request_id', models.UUIDField(primary_key=True, serialize=False)),
                ('tenant_id', models.UUIDField()),
                ('total_nano_usd', models.BigIntegerField()),
                ('rated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'metering_request',
            },
        ),
        migrations.CreateModel(
            name='TenantMeter',
            fields=[
                ('tenant_id', models.UUIDField(primary_key=True, serialize=False)),
                ('last_line', models.BigIntegerField(default=0)),
            ],
            options={
                'db_table': 'metering_tenant',
            },
        ),
        migrations.CreateModel(
            name='RatingFault',
            fields=[
                ('request_id', models.UUIDField(primary_key=True, serialize=False)),
                ('tenant_id', models.UUIDField()),
                ('reason', models.CharField(choices=[('price_missing', 'no price book in force prices this meter'), ('unit_mismatch', 'usage and price count in different units'), ('tenant_mismatch', 'usage rows name another tenant than the request'), ('refused', "billing's own constraints refused the result"), ('amount_out_of_range', 'the amount is too large to be true')], max_length=24)),
                ('detail', models.CharField(max_length=400)),
                ('tries', models.IntegerField(default=1)),
                ('first_seen_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('retry_at', models.DateTimeField()),
                ('resolved_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'metering_fault',
                'indexes': [models.Index(condition=models.Q(('resolved_at__isnull', True)), fields=['tenant_id'], name='fault_open')],
            },
        ),
        migrations.CreateModel(
            name='UsageDay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tenant_id', models.UUIDField()),
                ('day', models.DateField()),
                ('project_id', models.UUIDField()),
                ('model', models.CharField(max_length=200)),
                ('service_tier', models.CharField(max_length=40)),
                ('meter', models.CharField(max_length=32)),
                ('unit', models.CharField(max_length=20)),
                ('quantity', models.DecimalField(decimal_places=0, max_digits=38)),
                ('amount_nano_usd', models.BigIntegerField()),
            ],
            options={
                'db_table': 'metering_day',
                'constraints': [models.UniqueConstraint(fields=('tenant_id', 'day', 'project_id', 'model', 'service_tier', 'meter', 'unit'), name='usage_day_once')],
            },
        ),
        migrations.CreateModel(
            name='RatedLine',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tenant_id', models.UUIDField()),
                ('number', models.BigIntegerField()),
                ('usage_id', models.BigIntegerField(unique=True)),
                ('request_id', models.UUIDField()),
                ('project_id', models.UUIDField()),
                ('key_id', models.UUIDField()),
                ('model', models.CharField(max_length=200)),
                ('service_tier', models.CharField(max_length=40)),
                ('meter', models.CharField(max_length=32)),
                ('cache_tier', models.CharField(max_length=8)),
                ('quantity', models.BigIntegerField()),
                ('unit', models.CharField(max_length=20)),
                ('price_book', models.IntegerField()),
                ('unit_price_nano_usd', models.BigIntegerField()),
                ('unit_quantity', models.BigIntegerField()),
                ('carry_in', models.BigIntegerField()),
                ('amount_nano_usd', models.BigIntegerField()),
                ('occurred_at', models.DateTimeField()),
                ('rated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('ledger_transaction', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, to='ledger.ledgertransaction')),
                ('price', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to='pricing.price')),
            ],
            options={
                'db_table': 'metering_line',
                'indexes': [models.Index(fields=['tenant_id', 'occurred_at'], name='line_by_tenant'), models.Index(fields=['request_id'], name='line_by_request')],
                'constraints': [models.UniqueConstraint(fields=('tenant_id', 'number'), name='line_number_once'), models.CheckConstraint(condition=models.Q(('carry_in__gte', 0), ('quantity__gte', 0)), name='line_not_negative'), models.CheckConstraint(condition=models.Q(('amount_nano_usd', 0), ('ledger_transaction__isnull', False), _connector='OR'), name='line_is_posted')],
            },
        ),
        migrations.CreateModel(
            name='Remainder',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tenant_id', models.UUIDField()),
                ('remainder', models.BigIntegerField()),
                ('price', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to='pricing.price')),
            ],
            options={
                'db_table': 'metering_remainder',
                'constraints': [models.UniqueConstraint(fields=('tenant_id', 'price'), name='remainder_once'), models.CheckConstraint(condition=models.Q(('remainder__gte', 0)), name='remainder_not_negative')],
            },
        ),
    ]
