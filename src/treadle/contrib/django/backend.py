"""A backend of Django's tasks: `django.tasks` of Django 6, or the package `django-tasks` before."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from treadle.backoff import DEFAULT
from treadle.context import Context
from treadle.contrib.django.app import DjangoTreadle, project_app
from treadle.contrib.django.conf import TASK_OPTIONS
from treadle.errors import BadOption
from treadle.ids import is_id
from treadle.job import Attempt, Job, Status
from treadle.outcome import OutcomeKind, StopReason, decide

if TYPE_CHECKING:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
else:
    try:
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
    except ModuleNotFoundError:
        try:
            from django_tasks.backends.base import BaseTaskBackend
            from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
            from django_tasks.exceptions import TaskResultDoesNotExist
            from django_tasks.signals import task_enqueued, task_finished, task_started
        except ModuleNotFoundError:
            way_out = "install it: pip install django-tasks; Django 6 has tasks of its own"
            raise ImproperlyConfigured(f"Django {django.__version__} has no tasks; {way_out}") from None

PER_ARGUMENT = "count by a keyword argument of the tasks: per='payload.kwargs.customer'; or declare a job with @td.job"
NOT_FAIR = "tasks of Django have no tenant that could take turns; declare a job: @td.job(fair='tenant')"
STATUSES = {
    Status.PENDING: TaskResultStatus.READY,
    Status.BLOCKED: TaskResultStatus.READY,
    Status.PROCESSING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
}


class Backend(BaseTaskBackend):
    """Stores tasks as jobs of treadle. Their type is the path of the function, such as `shop.tasks.send`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, dict(params))
        if "fair" in self.options:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS'] has 'fair', and {NOT_FAIR}")
        for name in self.options:
            if name not in TASK_OPTIONS:
                known = ", ".join(TASK_OPTIONS)
                raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS'] has {name!r}; it may have {known}")
        for value in self.options.get("limits", ()):
            if getattr(value, "per", None) in ("tenant", "subject"):
                problem = f"TASKS[{alias!r}]['OPTIONS'] has {value!r}, and tasks of Django have no {value.per}"
                raise ImproperlyConfigured(f"{problem}; {PER_ARGUMENT}")

    @property
    def td(self) -> DjangoTreadle:
        return project_app()

    def validate_task(self, task: Task[..., Any]) -> None:
        """Called when a task is declared, too: from then on, workers know its type."""
        super().validate_task(task)
        if apps.ready and not apps.is_installed("treadle.contrib.django"):
            problem = f"TASKS[{self.alias!r}] needs 'treadle.contrib.django' in INSTALLED_APPS"
            raise ImproperlyConfigured(f"{problem}, which has the tables and the worker")
        if task.module_path not in self.td.registry:
            _declare(self, task)

    def enqueue(self, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[Any]:
        self.validate_task(task)
        _check_arguments(task, args, kwargs)
        options: Any = {"priority": task.priority, "queue": task.queue_name}
        if (due := task.run_after) is not None:
            options["run_at"] = timezone.make_aware(due) if timezone.is_naive(due) else due
        payload = {"args": list(args), "kwargs": dict(kwargs)}
        job = self.td.enqueue(task.module_path, payload, **options)
        result = self._result(task, job, ())
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        job = self.td.get(result_id) if is_id(result_id) else None
        known = self.td.registry.get(job.type) if job else None
        task = getattr(known.handler, "task", None) if known else None
        if job is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return self._result(task, job, self.td.attempts(job.id))

    def _result(self, task: Task[..., Any], job: Job, failures: Sequence[Attempt]) -> TaskResult[Any]:
        result = TaskResult(
            task=task,
            id=job.id,
            status=STATUSES[job.status],
            enqueued_at=job.created_at,
            started_at=failures[0].started_at if failures else job.started_at,
            finished_at=job.completed_at,
            last_attempted_at=job.started_at or (failures[-1].started_at if failures else None),
            args=job.payload.get("args", []),
            kwargs=job.payload.get("kwargs", {}),
            backend=self.alias,
            errors=[_error(failure) for failure in failures],
            worker_ids=_workers(job, failures),
        )
        object.__setattr__(result, "_return_value", job.result)  # as Django's own backends set it
        return result


_signature = cache(inspect.signature)


def _check_arguments(task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Django's own backends do not. But a worker could only fail it, at each attempt."""
    given = (None, *args) if task.takes_context else args
    try:
        _signature(task.func).bind(*given, **kwargs)
    except TypeError as error:
        raise TypeError(f"{task.module_path}: {error}; it takes {_signature(task.func)}") from None


def _workers(job: Job, failures: Sequence[Attempt]) -> list[str]:
    """Those that have run it, one for each attempt."""
    known = [failure.worker_id for failure in failures]
    return [*known, *[job.worker_id or ""] * (job.attempts - len(known))]


def _error(failure: Attempt) -> TaskError:
    """The class of the exception is in the traceback. Django imports it when somebody asks for it."""
    trace, name = failure.traceback or "", (failure.error or "Exception").partition(":")[0]
    heads = (line.partition(":")[0] for line in reversed(trace.splitlines()))
    paths = (head for head in heads if head.endswith(f".{name}") and head.replace(".", "").isidentifier())
    path = next(paths, f"builtins.{name}")
    return TaskError(exception_class_path=path, traceback=trace or failure.error or "")


def _declare(backend: Backend, task: Task[..., Any]) -> None:
    """Make a type of a task, whose handler calls it as Django's own backends do."""

    def call(ctx: Context, args: list[Any] = [], kwargs: dict[str, Any] = {}) -> Any:  # noqa: B006
        with _running(backend, task, ctx, args, kwargs) as given:
            return task.func(*given, *args, **kwargs)

    async def acall(ctx: Context, args: list[Any] = [], kwargs: dict[str, Any] = {}) -> Any:  # noqa: B006
        with _running(backend, task, ctx, args, kwargs) as given:
            return await task.func(*given, *args, **kwargs)

    handler: Any = acall if inspect.iscoroutinefunction(task.func) else call
    handler.__module__, handler.__qualname__, handler.task = task.func.__module__, task.func.__qualname__, task
    of_task: Any = {"type": task.module_path, "queue": task.queue_name, "priority": task.priority}
    try:
        backend.td.job(**of_task, **backend.options)(handler)
    except BadOption as error:
        raise ImproperlyConfigured(f"TASKS[{backend.alias!r}]['OPTIONS']: {error}") from error


@contextmanager
def _running(
    backend: Backend, task: Task[..., Any], ctx: Context, args: list[Any], kwargs: dict[str, Any]
) -> Generator[tuple[TaskContext, ...]]:
    """Send Django's signals around an attempt. Yields the context, if the task takes it.

    An attempt that is tried again has not finished the task: to Django, FAILED is final, and it is logged as an error.
    """
    now = timezone.now()
    result: TaskResult[Any] = TaskResult(
        task=task,
        id=ctx.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=None,
        started_at=now,
        finished_at=None,
        last_attempted_at=now,
        args=args,
        kwargs=kwargs,
        backend=backend.alias,
        errors=[],
        worker_ids=[""] * ctx.attempt,
    )
    task_started.send(type(backend), task_result=result)
    try:
        yield (TaskContext(task_result=result),) if task.takes_context else ()
    except BaseException as error:
        if _is_final(ctx, error):
            path, trace = f"{type(error).__module__}.{type(error).__qualname__}", traceback.format_exception(error)
            result.errors.append(TaskError(exception_class_path=path, traceback="".join(trace)))
            _finished(backend, result, TaskResultStatus.FAILED)
        raise
    _finished(backend, result, TaskResultStatus.SUCCESSFUL)


def _is_final(ctx: Context, error: BaseException) -> bool:
    """Whether the task ends with this error: it is not retried, snoozed or released."""
    if (reason := ctx._run.stop_reason) is not None:
        return reason is StopReason.CANCELLED
    return decide(ctx._run.claimed, error, DEFAULT).kind is OutcomeKind.FAILED


def _finished(backend: Backend, result: TaskResult[Any], status: TaskResultStatus) -> None:
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)
    task_finished.send(type(backend), task_result=result)
