"""Background work of many orgs without a worker: whoever calls POST /api/jobs/tick runs it (seed 002)."""
