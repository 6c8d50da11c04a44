"""Tasks of Django, and jobs of treadle."""

from __future__ import annotations

import asyncio
import os

from django.db import IntegrityError, connection, transaction
from django.db.models import F

from tests.contrib.django_project.shop.models import Order
from treadle import Context
from treadle.contrib.django import td

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task
def ship(note: str) -> dict[str, int]:
    Order.objects.filter(note=note).update(shipped=F("shipped") + 1)
    return {"shipped": Order.objects.get(note=note).shipped}


@task(queue_name="mail", priority=10)
async def mail(note: str, *, copies: int = 1) -> int:
    return copies if await Order.objects.filter(note=note).aexists() else 0


@task(takes_context=True)
def fail(context, *args: int) -> None:
    raise ValueError(f"attempt {context.attempt} of {args}")


@td.job(max_attempts=3)
def pack(ctx: Context, note: str) -> str:
    with transaction.atomic():
        order = Order.objects.create(note=note)
        label.enqueue(order.pk)
    ctx.step("weigh", lambda: 7)
    return order.note


@td.job
def label(order: int) -> int:
    return order


@td.job
def refund(ctx: Context, order: int) -> str:
    weight = ctx.step("weigh", lambda: order)
    return f"paid {weight}" if ctx.wait_for(f"refund:{order}", timeout=60) else "refused"


@td.job(max_attempts=1)
def settle(ctx: Context, note: str, own: bool) -> None:
    """Complete in a transaction of Django, or of treadle."""
    if own:
        with transaction.atomic():
            Order.objects.create(note=note)
            label.enqueue(1)
            ctx.complete(note, connection=connection)
        return
    with ctx.transaction():
        ctx.result = note
        label.enqueue(2)


@td.job(max_attempts=1)
def clash(note: str) -> str:
    """The second insert fails, and the handler goes on."""
    Order.objects.create(note=note)
    try:
        with transaction.atomic():
            Order.objects.create(note=note)
    except IntegrityError:
        return "clashed"
    return "no clash"


@td.job
def count_orders(ctx: Context) -> list[int]:
    return [ctx.state["client"], Order.objects.count()]


@td.job
async def acount_orders(ctx: Context) -> list[object]:
    return [ctx.state["loop"] == id(asyncio.get_running_loop()), await Order.objects.acount()]


@td.job(max_attempts=1)
def broken(note: str) -> None:
    Order.objects.create(note=note)
    Order.objects.create(note=note)


@td.job(max_attempts=1)
def sign_in(name: str, password: str) -> None:
    raise ValueError(f"{name}, password={password}")


@td.job(run="process")
def apart(note: str) -> tuple[int, int]:
    return Order.objects.filter(note=note).update(shipped=F("shipped") + 1), os.getpid()


@td.job(max_attempts=2, backoff=0.5)
def count(note: str) -> None:
    """Its server may restart in the middle of it."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(note=note)
        order.shipped += 1
        order.save()
