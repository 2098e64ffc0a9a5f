import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Hold',
            fields=[
                ('request_id', models.UUIDField(primary_key=True, serialize=False)),
                ('tenant_id', models.UUIDField()),
                ('amount_nano_usd', models.BigIntegerField()),
                ('settled_nano_usd', models.BigIntegerField(default=0)),
                ('state', models.CharField(choices=[('open', 'the request may still cost this much'), ('settled', "rated: `settled_nano_usd` is in the account's use"), ('released', 'the request ended without use')], default='open', max_length=8)),
                ('placed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('ended_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'holds_hold',
                'indexes': [models.Index(condition=models.Q(('state', 'open')), fields=['tenant_id'], name='hold_open')],
                'constraints': [models.CheckConstraint(condition=models.Q(('amount_nano_usd__gte', 0)), name='hold_not_negative'), models.CheckConstraint(condition=models.Q(('settled_nano_usd__gte', 0)), name='hold_settled_not_negative'), models.CheckConstraint(condition=models.Q(('state', 'settled'), ('settled_nano_usd', 0), _connector='OR'), name='hold_use_only_when_settled')],
            },
        ),
        migrations.CreateModel(
            name='HoldAccount',
            fields=[
                ('tenant_id', models.UUIDField(primary_key=True, serialize=False)),
                ('limit_nano_usd', models.BigIntegerField(null=True)),
                ('used_nano_usd', models.BigIntegerField(default=0)),
                ('held_nano_usd', models.BigIntegerField(default=0)),
            ],
            options={
                'db_table': 'holds_account',
                'constraints': [models.CheckConstraint(condition=models.Q(('limit_nano_usd__gte', 0)), name='hold_account_limit_not_negative'), models.CheckConstraint(condition=models.Q(('used_nano_usd__gte', 0)), name='hold_account_used_not_negative'), models.CheckConstraint(condition=models.Q(('held_nano_usd__gte', 0)), name='hold_account_held_not_negative')],
            },
        ),
        migrations.CreateModel(
            name='HoldRelief',
            fields=[
                ('source_key', models.CharField(max_length=200, primary_key=True, serialize=False)),
                ('tenant_id', models.UUIDField()),
                ('amount_nano_usd', models.BigIntegerField()),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'holds_relief',
                'constraints': [models.CheckConstraint(condition=models.Q(('amount_nano_usd__gt', 0)), name='hold_relief_positive')],
            },
        ),
    ]
