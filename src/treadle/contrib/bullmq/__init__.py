"""BullMQ: the same handlers on Redis. It produces jobs, works on them, and relays those of your transactions."""

from treadle.contrib.bullmq.producer import Bull
from treadle.contrib.bullmq.relay import Relay
from treadle.contrib.bullmq.unsupported import UnsupportedByBullMQ
from treadle.contrib.bullmq.worker import BullWorker

__all__ = ["Bull", "BullWorker", "Relay", "UnsupportedByBullMQ"]
