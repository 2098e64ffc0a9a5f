"""The control plane: tenants, keys, catalogue, admission, gateway, console. Celery's application is known wherever Django is."""

from controlplane.celery import app as celery_app

__all__ = ["celery_app"]
