"""Who may use the platform: organisations (the tenants), their projects, the people and what each may do."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager, PermissionsMixin
from django.db import models


class UserManager(BaseUserManager["User"]):
    def create_user(self, email: str, password: str | None = None, **fields: Any) -> User:
        if not email:
            raise ValueError("a user needs an e-mail address")
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> User:
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)

    def get_by_natural_key(self, username: str | None) -> User:
        return self.get(email=(username or "").lower())


class User(AbstractBaseUser, PermissionsMixin):
    """A person. E-mail addresses are stored in lower case and are the login name."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = models.EmailField(unique=True)
    name = models.CharField(max_length=200, blank=True)
    is_active = models.BooleanField(default=True)
    is_staff = models.BooleanField(default=False)  # may enter the operator's console
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS = []

    class Meta:
        db_table = "tenants_user"
        ordering = ["email"]

    def __str__(self) -> str:
        return self.email


class OrganisationState(models.TextChoices):
    ACTIVE = "active", "may send requests"
    SUSPENDED = "suspended", "requests are refused"


class Organisation(models.Model):
    """A tenant; its id is the `tenant_id` of every other room. A higher `scope_epoch` makes all its cached prefixes unreachable."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=200)
    state = models.CharField(max_length=12, choices=OrganisationState.choices, default=OrganisationState.ACTIVE)
    scope_epoch = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "tenants_organisation"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Project(models.Model):
    """A part of an organisation that keys and costs are grouped by."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organisation = models.ForeignKey(Organisation, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "tenants_project"
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["organisation", "name"], name="project_name_once")]

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    OWNER = "owner", "all, and who else may"
    ADMIN = "admin", "keys, projects, members"
    DEVELOPER = "developer", "keys of their own"
    BILLING = "billing", "usage and invoices"
    VIEWER = "viewer", "reads"


class Member(models.Model):
    """What a person may do in an organisation."""

    organisation = models.ForeignKey(Organisation, on_delete=models.CASCADE, related_name="members")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=12, choices=Role.choices)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "tenants_member"
        constraints = [models.UniqueConstraint(fields=["organisation", "user"], name="member_once")]

    def __str__(self) -> str:
        return f"{self.user} ({self.role})"
