"""Three jobs from enqueue to result, in one file: python hello.py"""

from treadle import Treadle

td = Treadle("sqlite:///hello.db")  # made on first use


@td.job(max_attempts=3)
def greet(name: str) -> str:
    return f"hello, {name}"


if __name__ == "__main__":
    jobs = [greet.enqueue(name=name) for name in ("Ada", "Grace", "Katherine")]  # stored: safe from a crash
    report = td.tick()  # runs all due jobs in this process. A worker that stays: treadle worker hello:td
    print(f"{report.completed} jobs completed")
    for job in jobs:
        print(td.result(job.id))
