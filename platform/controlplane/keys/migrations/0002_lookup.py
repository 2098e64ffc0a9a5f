from django.db import migrations

from inference.database import row_security

# A key is looked up before its tenant is known, so this one question is asked with the owner's eyes: by id, one row, fixed search path.
# plpgsql, so that the body is resolved at the call: the tables of other rooms may come in any order.
FUNCTION = """
CREATE FUNCTION keys_lookup(wanted uuid) RETURNS TABLE (
    id uuid, tenant_id uuid, project_id uuid, digest bytea, expires_at timestamptz, revoked_at timestamptz, last_used_at timestamptz,
    requests_per_minute integer, tokens_per_minute integer, concurrent_requests integer, tenant_state varchar, scope_epoch integer
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT k.id, k.tenant_id, k.project_id, k.digest, k.expires_at, k.revoked_at, k.last_used_at,
           k.requests_per_minute, k.tokens_per_minute, k.concurrent_requests, o.state, o.scope_epoch
    FROM public.keys_apikey k JOIN public.tenants_organisation o ON o.id = k.tenant_id
    WHERE k.id = wanted;
END
$$
"""


class Migration(migrations.Migration):
    dependencies = [("keys", "0001_initial"), ("tenants", "0001_initial")]

    operations = [
        row_security("keys_apikey"),
        migrations.RunSQL(
            sql=[
                "GRANT SELECT, INSERT, UPDATE, DELETE ON keys_apikey TO brigade_system",
                "REVOKE ALL ON keys_apikey FROM brigade_app",
                "GRANT SELECT, UPDATE (last_used_at) ON keys_apikey TO brigade_app",
                FUNCTION,
                "REVOKE ALL ON FUNCTION keys_lookup(uuid) FROM PUBLIC",
                "GRANT EXECUTE ON FUNCTION keys_lookup(uuid) TO brigade_app, brigade_system",
            ],
            reverse_sql=["DROP FUNCTION keys_lookup(uuid)"],
        ),
    ]
