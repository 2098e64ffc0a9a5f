import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='LedgerAccount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tenant_id', models.UUIDField(null=True)),
                ('kind', models.CharField(choices=[('accrued', 'used, not invoiced yet'), ('receivable', 'invoiced, not paid yet'), ('prepaid', 'paid ahead'), ('promotional', 'credit given by the platform'), ('revenue', 'earned'), ('rounding', 'differences of invoices in whole cents'), ('cash', 'received')], max_length=12)),
            ],
            options={
                'db_table': 'ledger_account',
                'constraints': [models.UniqueConstraint(fields=('tenant_id', 'kind'), name='ledger_account_once', nulls_distinct=False), models.CheckConstraint(condition=models.Q(models.Q(('kind__in', ('accrued', 'receivable', 'prepaid', 'promotional')), ('tenant_id__isnull', False)), models.Q(('tenant_id__isnull', True), models.Q(('kind__in', ('accrued', 'receivable', 'prepaid', 'promotional')), _negated=True)), _connector='OR'), name='ledger_account_kind_of_owner')],
            },
        ),
        migrations.CreateModel(
            name='LedgerTransaction',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('source_key', models.CharField(max_length=200, unique=True)),
                ('tenant_id', models.UUIDField()),
                ('posted_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('description', models.CharField(max_length=200)),
                ('entry_count', models.SmallIntegerField()),
                ('content', models.CharField(max_length=64)),
                ('reverses', models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='reversed_by', to='ledger.ledgertransaction')),
            ],
            options={
                'db_table': 'ledger_transaction',
            },
        ),
        migrations.CreateModel(
            name='LedgerEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tenant_id', models.UUIDField()),
                ('amount_nano_usd', models.BigIntegerField()),
                ('effective_at', models.DateTimeField()),
                ('account', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='entries', to='ledger.ledgeraccount')),
                ('transaction', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='entries', to='ledger.ledgertransaction')),
            ],
            options={
                'db_table': 'ledger_entry',
            },
        ),
        migrations.AddIndex(
            model_name='ledgertransaction',
            index=models.Index(fields=['tenant_id', 'posted_at'], name='ledger_transaction_by_tenant'),
        ),
        migrations.AddConstraint(
            model_name='ledgertransaction',
            constraint=models.CheckConstraint(condition=models.Q(('entry_count__gte', 2)), name='ledger_transaction_two_entries'),
        ),
        migrations.AddIndex(
            model_name='ledgerentry',
            index=models.Index(fields=['account', 'effective_at'], name='ledger_entry_by_account'),
        ),
        migrations.AddConstraint(
            model_name='ledgerentry',
            constraint=models.CheckConstraint(condition=models.Q(('amount_nano_usd', 0), _negated=True), name='ledger_entry_not_zero'),
        ),
    ]
