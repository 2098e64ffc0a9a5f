"""Django's settings. Everything that an operator may set is read here, once, from the environment."""

from __future__ import annotations

import os
from typing import cast

from django.core.exceptions import ImproperlyConfigured

from controlplane.embedded.paths import data_folder
from controlplane.settings import env
from controlplane.settings.console import console_settings
from controlplane.settings.database import ROLES, DatabaseRole, Server, django_database
from controlplane.settings.logs import FORMS, logging_settings
from controlplane.settings.queues import celery_settings
from inference.telemetry.redaction import keep_secret

DATA = data_folder()
PORT = env.integer("PORT", DATA.running_port() or 8000, least=0, most=65535)
BIND = env.text("BRIGADE_BIND", "127.0.0.1")
ENVIRONMENT = env.choice("BRIGADE_ENVIRONMENT", "local", ("local", "production"))
DEBUG = env.boolean("BRIGADE_DEBUG")
TEST_HOOKS = env.boolean("BRIGADE_TEST_HOOKS")  # failpoints and the scripted model; refused in production by a system check
METRICS = env.address("BRIGADE_METRICS")  # where this process shows its metrics; None: nowhere
SECRET_KEY_IS_SET = bool(env.secret("BRIGADE_SECRET_KEY"))
LOG_FORMAT = env.choice("BRIGADE_LOG_FORMAT", "json" if ENVIRONMENT == "production" else "text", FORMS)
LOGGING = logging_settings(env.choice("BRIGADE_LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR")), LOG_FORMAT)

# Where state lives. Unset: the servers that `manage.py serve` starts in the data folder.
DATABASE_ROLE = cast(DatabaseRole, env.choice("BRIGADE_DATABASE_ROLE", "system", ROLES))
DATABASE_IS_EMBEDDED = not env.secret("DATABASE_URL")
REDIS_IS_EMBEDDED = not env.secret("REDIS_URL")
BROKER_IS_EMBEDDED = not env.secret("BROKER_URL")
DATABASE_URL = env.secret("DATABASE_URL") or DATA.database_url
DATABASE_SERVER = Server.from_url(DATABASE_URL)

# A key that ends with its process would do harm where passwords or API keys derive from it.
if not (SECRET_KEY_IS_SET or DATA.root.exists()) and (DATABASE_SERVER.password or env.text("BRIGADE_PROCESS") == "gateway"):
    raise ImproperlyConfigured(f"BRIGADE_SECRET_KEY: not set, and {DATA.root} is not there to hold a key; set it or BRIGADE_DATA")
try:
    SECRET_KEY = keep_secret(env.secret("BRIGADE_SECRET_KEY") or DATA.secret_key())
except OSError as error:
    raise ImproperlyConfigured(f"BRIGADE_DATA: {error}") from error

DATABASES = {
    "default": django_database(DATABASE_SERVER, DATABASE_ROLE, SECRET_KEY),
    # The operator's console sees all tenants; nothing else may use this alias.
    "system": django_database(DATABASE_SERVER, "system", SECRET_KEY),
}
DATABASES["system"]["TEST"] = {"MIRROR": "default"}
REDIS_URL = env.secret("REDIS_URL") or DATA.redis_url
BROKER_URL = env.secret("BROKER_URL") or DATA.broker_url
globals().update(celery_settings(BROKER_URL))

# Inference. A worker's memory is WORKER_BLOCKS times the model's block (SmolLM2-135M in fp32: 720 KiB).
MODELS = env.names("BRIGADE_MODEL", ("smollm2-135m-instruct",))
MODEL = MODELS[0]
WORKER_BLOCKS = env.integer("WORKER_BLOCKS", 1024, least=4, most=10_000_000)
WORKER_MAX_RUNNING = env.integer("WORKER_MAX_RUNNING", 32, least=1, most=4096)
WORKER_THREADS = env.integer("WORKER_THREADS", os.cpu_count() or 1, least=1, most=1024)
WORKER_GRACE_S = env.integer("WORKER_GRACE_S", 8, least=0, most=3600)
CLIENT_TIMEOUT_S = env.integer("BRIGADE_CLIENT_TIMEOUT_S", 25, least=3, most=3600)  # a client that acknowledges nothing is gone
GATEWAY_LEASE_S = env.integer("BRIGADE_GATEWAY_LEASE_S", 10, least=2, most=600)
BODY_RETENTION_S = env.integer("BRIGADE_BODY_RETENTION_S", 3600, least=0)

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    "rest_framework",
    "inference.requests",
    "inference.coordination",
    "inference.kvdirectory",
    "inference.usage",
    "inference.scheduling",
    "inference.workers",
    "billing.holds",
    "billing.pricing",
    "billing.metering",
    "billing.ledger",
    "billing.invoices",
    "controlplane.tenants",
    "controlplane.keys",
    "controlplane.catalog",
    "controlplane.idempotency",
    "controlplane.fleet",
    "controlplane.console",
    "controlplane.embedded",
]
AUTH_USER_MODEL = "tenants.User"
CONSOLE_MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
globals().update(console_settings(CONSOLE_MIDDLEWARE))
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "controlplane.urls"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
STATIC_URL = "static/"
ALLOWED_HOSTS = env.text("BRIGADE_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]").split(",")
