
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='ServedModel',
            fields=[
                ('name', models.CharField(max_length=200, primary_key=True, serialize=False)),
                ('display_name', models.CharField(max_length=200)),
                ('context_length', models.PositiveIntegerField()),
                ('enabled', models.BooleanField(default=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'db_table': 'catalog_model',
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='ServiceTier',
            fields=[
                ('name', models.CharField(max_length=40, primary_key=True, serialize=False)),
                ('priority', models.IntegerField()),
                ('deadline_s', models.FloatField()),
                ('path', models.CharField(choices=[('auto', 'the dispatcher decides'), ('split', 'prefill and decode on two workers'), ('fused', 'one worker does both')], default='auto', max_length=5)),
                ('enabled', models.BooleanField(default=True)),
            ],
            options={
                'db_table': 'catalog_tier',
                'ordering': ['priority'],
                'constraints': [models.CheckConstraint(condition=models.Q(('deadline_s__gt', 0)), name='tier_deadline_above_zero')],
            },
        ),
    ]
