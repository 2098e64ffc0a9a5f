import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='PriceBook',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.IntegerField(unique=True)),
                ('name', models.CharField(max_length=120)),
                ('currency', models.CharField(default='USD', max_length=3)),
                ('effective_from', models.DateTimeField()),
                ('published_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'pricing_book',
                'constraints': [models.UniqueConstraint(condition=models.Q(('published_at__isnull', False)), fields=('effective_from',), name='book_in_force_once'), models.CheckConstraint(condition=models.Q(('version__gt', 0)), name='book_version_positive')],
            },
        ),
        migrations.CreateModel(
            name='Price',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('model', models.CharField(max_length=200)),
                ('service_tier', models.CharField(max_length=40)),
                ('meter', models.CharField(max_length=32)),
                ('cache_tier', models.CharField(default='', max_length=8)),
                ('unit', models.CharField(max_length=20)),
                ('unit_price_nano_usd', models.BigIntegerField()),
                ('unit_quantity', models.BigIntegerField()),
                ('book', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='prices', to='pricing.pricebook')),
            ],
            options={
                'db_table': 'pricing_price',
                'constraints': [models.UniqueConstraint(fields=('book', 'model', 'service_tier', 'meter', 'cache_tier'), name='price_once'), models.CheckConstraint(condition=models.Q(('unit_price_nano_usd__gte', 0)), name='price_not_negative'), models.CheckConstraint(condition=models.Q(('unit_quantity__gt', 0)), name='price_unit_positive')],
            },
        ),
    ]
