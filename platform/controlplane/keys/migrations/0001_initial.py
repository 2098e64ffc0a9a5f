
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='ApiKey',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('tenant_id', models.UUIDField(editable=False)),
                ('project_id', models.UUIDField(editable=False)),
                ('name', models.CharField(max_length=200)),
                ('prefix', models.CharField(editable=False, max_length=16)),
                ('digest', models.BinaryField(max_length=32)),
                ('created_by_id', models.UUIDField(editable=False, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('last_used_at', models.DateTimeField(editable=False, null=True)),
                ('requests_per_minute', models.PositiveIntegerField(default=6000)),
                ('tokens_per_minute', models.PositiveIntegerField(default=10000000)),
                ('concurrent_requests', models.PositiveIntegerField(default=256)),
            ],
            options={
                'db_table': 'keys_apikey',
                'ordering': ['-created_at'],
                'indexes': [models.Index(fields=['tenant_id', '-created_at'], name='apikey_by_tenant')],
                'constraints': [models.CheckConstraint(condition=models.Q(('concurrent_requests__gt', 0), ('requests_per_minute__gt', 0), ('tokens_per_minute__gt', 0)), name='apikey_limits_above_zero')],
            },
        ),
    ]
