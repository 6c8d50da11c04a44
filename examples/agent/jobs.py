"""The agent, as one durable handler: it runs again from the top, and no step that is stored is done again."""

from __future__ import annotations

import os
from collections.abc import Callable

from treadle import Context, Limit, Treadle

from . import model, shop

td = Treadle()  # $TREADLE_URL, or ./treadle.db
FREELY = 5_000
"""Cents that the agent may refund without asking a person."""
PATIENCE = float(os.environ.get("APPROVAL_SECONDS", 86_400))
"""Seconds until it no longer waits for that person."""
BACKOFF = float(os.environ.get("BACKOFF_SECONDS", 10))
MODEL = Limit("model", concurrency=8, per="tenant")
"""Handlers that may ask the model at once. A handler that waits for a person or for searches is not one of them."""
TOOLS: dict[str, Callable[..., str]] = {"look_up_order": shop.look_up_order, "check_stock": shop.check_stock}


@td.job(max_attempts=4, backoff=BACKOFF, timeout=60, limits=[MODEL])
async def answer_call(ctx: Context, said: str) -> str:
    searches = search.using(tenant=ctx.tenant, subject=ctx.subject)
    replies = reply.using(tenant=ctx.tenant, subject=ctx.subject)
    plan = await ctx.astep("plan", model.plan, said)

    requests = [searches.request(question=question) for question in plan.questions]
    talk = [said, *await ctx.agather("search", requests)]  # jobs of their own, in any worker, at the same time

    while (move := await ctx.astep("think", model.next_move, talk)).tool:  # stored as think, think#2, think#3
        talk.append(await ctx.astep(move.tool, TOOLS[move.tool], **move.arguments))

    if move.refund > FREELY and not await is_approved(ctx):
        replies.enqueue(text="A colleague will call you back.")
        return "handed over"
    if move.refund:
        await ctx.astep("refund", shop.refund, plan.order, move.refund, key=ctx.id)
    replies.enqueue(text=move.reply)  # stored with the completion of this job
    return f"refunded {move.refund}" if move.refund else "answered"


async def is_approved(ctx: Context) -> bool:
    """Wait for a person: `td.signal("approve:CALL", True, tenant=…)`, for as long as it takes, and hold no worker."""
    try:
        return bool(await ctx.await_for(f"approve:{ctx.subject}", timeout=PATIENCE))
    except TimeoutError:
        return False


@td.job(max_attempts=4, backoff=BACKOFF, limits=[MODEL])
def search(question: str) -> str:
    return model.answer(question)


@td.job(max_attempts=4, backoff=BACKOFF)
def reply(ctx: Context, text: str) -> None:
    shop.send(ctx.subject, text, key=ctx.id)
