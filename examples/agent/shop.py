"""The tools of the agent: a client of the shop. What changes something has a key, so that it happens once."""

from __future__ import annotations

from .model import post


def look_up_order(order: str) -> str:
    return say("/shop/order", order=order)


def check_stock(item: str) -> str:
    return say("/shop/stock", item=item)


def refund(order: str, cents: int, key: str) -> str:
    return say("/shop/refund", key, order=order, cents=cents)


def send(call: str, text: str, key: str) -> None:
    say("/shop/reply", key, call=call, text=text)


def say(path: str, key: str = "", **body: object) -> str:
    text: str = post(path, body, key)["text"]
    return text
