"""Background work of many organizations without a worker: POST /api/jobs/tick runs it."""
