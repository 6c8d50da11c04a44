"""The records of the HTTP API: the audit log, tokens, operations and requests that may be repeated."""


class WebRecords:
    """What the HTTP API writes down for itself."""

    AUDIT = """
        INSERT INTO treadle.audit (id, at, who, action, what, count, tenant)
        VALUES (:id, :now, :who, :action, :what, :count, :tenant)
    """
    LIST_AUDIT = """
        SELECT who, action, what, count, tenant, id::text, at FROM treadle.audit a
         WHERE id < CAST(:before AS uuid) ORDER BY a.id DESC LIMIT :limit
    """
    PRUNE_AUDIT = "DELETE FROM treadle.audit WHERE id < CAST(:oldest AS uuid)"
    ADD_TOKEN = """
        INSERT INTO treadle.tokens (hash, name, scopes, bound_to, created_at, expires_at)
        VALUES (:hash, :name, :scopes, :tenant, :now, :expires_at) ON CONFLICT DO NOTHING
    """
    TOKEN = "SELECT hash, name, scopes, bound_to, expires_at, created_at FROM treadle.tokens WHERE hash = :hash"
    TOKENS = "SELECT hash, name, scopes, bound_to, expires_at, created_at FROM treadle.tokens ORDER BY name"
    DROP_TOKEN = "DELETE FROM treadle.tokens WHERE name = :name"
    START_OPERATION = """
        INSERT INTO treadle.operations
               (id, who, action, filter, changes, total, done, skipped, position, started_at, updated_at)
        VALUES (:id, :who, :action, :filter, :changes, :total, 0, 0, :position, :now, :now)
    """
    ADVANCE_OPERATION = """
        UPDATE treadle.operations SET done = done + :done, skipped = skipped + :skipped, position = :position,
               updated_at = :now, ended_at = CASE WHEN CAST(:position AS text) IS NULL THEN CAST(:now AS bigint) END
         WHERE id = CAST(:id AS uuid)
    """
    RESUME_OPERATION = """
        UPDATE treadle.operations SET updated_at = :now
         WHERE id = CAST(:id AS uuid) AND updated_at = :seen AND ended_at IS NULL
    """
    FAIL_OPERATION = """
        UPDATE treadle.operations SET ended_at = :now, error = :error WHERE id = CAST(:id AS uuid) AND ended_at IS NULL
    """
    LOCK_OPERATION = """
        SELECT position FROM treadle.operations WHERE id = CAST(:id AS uuid) AND ended_at IS NULL FOR UPDATE
        """
    _OPERATION = """
        SELECT id::text, who, action, filter, total, done, skipped, position, started_at, updated_at, ended_at, error,
               changes
          FROM treadle.operations o
    """
    OPERATION = f"{_OPERATION} WHERE id = CAST(:id AS uuid)"
    OPERATIONS = f"{_OPERATION} ORDER BY o.id DESC LIMIT :limit"  # by `id`, it would sort the texts
    PRUNE_OPERATIONS = "DELETE FROM treadle.operations WHERE id < CAST(:oldest AS uuid)"
    # Take the key of a request, or see by the row count that it was answered before.
    TAKE_REQUEST = """
        INSERT INTO treadle.requests (tenant, key, hash, ids, at) VALUES (:tenant, :key, :hash, :ids, :now)
            ON CONFLICT DO NOTHING
    """
    REQUEST = "SELECT hash, ids FROM treadle.requests WHERE tenant = :tenant AND key = :key"
    SET_REQUEST = "UPDATE treadle.requests SET ids = :ids WHERE tenant = :tenant AND key = :key"
    PRUNE_REQUESTS = "DELETE FROM treadle.requests WHERE at < :before"
