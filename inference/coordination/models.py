"""What etcd does elsewhere, as rows: who is alive, who leads, and what is configured. Time is always the database's."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now


class WorkerState(models.TextChoices):
    READY = "ready", "takes work"
    DRAINING = "draining", "ends what it has"
    DEAD = "dead", "its lease ended, or its supervisor saw it end"


class Worker(models.Model):
    """A worker slot and the process that holds it. `epoch` rises at each start; requests are owned by (slot, epoch)."""

    slot = models.CharField(max_length=64, primary_key=True)
    epoch = models.BigIntegerField(default=1)
    state = models.CharField(max_length=8, choices=WorkerState.choices)
    roles = ArrayField(models.CharField(max_length=8))  # prefill, decode
    model = models.CharField(max_length=200)
    layout = models.JSONField()  # KVLayout
    host = models.CharField(max_length=200)
    pid = models.IntegerField()
    device = models.CharField(max_length=40)
    arena = models.CharField(max_length=200)  # file name inside the host's arena folder
    started_at = models.DateTimeField()
    lease_until = models.DateTimeField()
    progress_at = models.DateTimeField(db_default=Now())  # when the engine loop last came round, as of the last renewal
    pool = models.JSONField(default=dict)  # PoolCounters
    load = models.JSONField(default=dict)  # running, waiting, max_running, tokens_per_second by phase

    class Meta:
        db_table = "coordination_worker"


class Gateway(models.Model):
    """A gateway process that lives: the row goes with its lease. A process that starts, or that lost its row, is a new one."""

    id = models.UUIDField(primary_key=True)
    host = models.CharField(max_length=200)
    pid = models.IntegerField()
    started_at = models.DateTimeField()
    lease_until = models.DateTimeField()

    class Meta:
        db_table = "coordination_gateway"


class LeaderLease(models.Model):
    """One leader by name. The fence rises with every change of holder; a frozen leader's writes carry an old one."""

    name = models.CharField(max_length=64, primary_key=True)
    holder = models.CharField(max_length=120)
    fence = models.BigIntegerField(default=1)
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "coordination_lease"


class Heartbeat(models.Model):
    """When a process without a worker row (dispatcher, reaper, usage ingest) last made progress."""

    name = models.CharField(max_length=64, primary_key=True)
    at = models.DateTimeField()
    detail = models.JSONField(default=dict)

    class Meta:
        db_table = "coordination_heartbeat"


class ConfigEntry(models.Model):
    """A setting that changes at run time. The names, types and defaults are in `configuration.py`."""

    name = models.CharField(max_length=80, primary_key=True)
    value = models.JSONField()
    version = models.BigIntegerField(default=1)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "coordination_config"
