"""Write, get killed, reopen, consume: nothing acknowledged is missing, every transaction is whole.

A child process writes from several threads, with producers and with transactions, and reports what
was acknowledged; this process kills it without warning, three times. Then a consumer group reads
everything and compares. At last a checkpoint puts the records into segments, which are the files of
Iceberg tables, and pyiceberg counts them. Run it with `make demo`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from pyiceberg.catalog import load_catalog
from rich.console import Console
from rich.table import Table

import lakebed

PRODUCERS = 3
TRANSACTIONS = 3
LIVES = 3
SECONDS = 1.5
GROUP = "audit"


def write(folder: str) -> None:
    """Write for ever, and report what was acknowledged: `topic value`, a line each."""
    log = lakebed.open(folder)
    log.get_or_create_topic("clicks", partitions=4)
    for topic in ("debits", "credits"):
        log.get_or_create_topic(topic, partitions=2)

    def produce(name: int) -> None:
        """Send clicks in batches; each is written once."""
        with log.producer(f"clicks-{name}") as producer:
            number = 0
            while True:
                clicks = [b"%d/%d/%d" % (os.getpid(), name, number + each) for each in range(100)]
                sent = [producer.send("clicks", click, key=b"user %d" % name) for click in clicks]
                sent[-1].result()
                os.write(1, b"".join(b"clicks %s\n" % click for click in clicks))
                number += len(clicks)

    def transfer(name: int) -> None:
        """Write a debit and its credit together."""
        number = 0
        while True:
            payment = b"%d/%d/%d" % (os.getpid(), name, number)
            with log.transaction(f"transfer-{name}") as tx:
                tx.append("debits", payment)
                tx.append("credits", payment)
            os.write(1, b"debits %s\ncredits %s\n" % (payment, payment))
            number += 1

    for name in range(PRODUCERS):
        threading.Thread(target=produce, args=(name,)).start()
    for name in range(TRANSACTIONS):
        threading.Thread(target=transfer, args=(name,)).start()


def let_it_write_and_kill_it(folder: Path) -> list[tuple[str, bytes]]:
    """Start a writer, collect what it reports, kill it; give the reports."""
    child = subprocess.Popen([sys.executable, __file__, str(folder)], stdout=subprocess.PIPE)  # noqa: S603
    assert child.stdout is not None
    first = child.stdout.readline()
    killer = threading.Timer(SECONDS, child.send_signal, [signal.SIGKILL])
    killer.start()
    lines = [first, *child.stdout]
    child.wait()
    killer.join()
    whole = [line.rstrip(b"\n").partition(b" ") for line in lines if line.endswith(b"\n")]
    return [(topic.decode(), value) for topic, _, value in whole]


def consume(log: lakebed.Log) -> dict[str, Counter[bytes]]:
    """Read every topic as a group of consumers does, to the end."""
    found = {name: Counter[bytes]() for name in log.topics()}
    with log.consumer(GROUP, topics=log.topics()) as consumer:
        while (batch := consumer.poll()).num_rows:
            topic = batch.schema.metadata[b"topic"].decode()
            found[topic].update(batch["value"].to_pylist())
            consumer.commit()
    return found


def missing_records(
    found: dict[str, Counter[bytes]], acknowledged: list[tuple[str, bytes]]
) -> list[tuple[str, bytes]]:
    """Give what was acknowledged and is not there."""
    return [(topic, value) for topic, value in acknowledged if not found[topic][value]]


def wrong_records(found: dict[str, Counter[bytes]]) -> int:
    """Count records that are there twice, and halves of transactions."""
    twice = sum(count - 1 for values in found.values() for count in values.values())
    halves = found["debits"].keys() ^ found["credits"].keys()
    return twice + len(halves)


def read_tables(folder: Path, topics: list[str]) -> int:
    """Count the records in the Iceberg tables of topics, with nothing but pyiceberg."""
    catalog = load_catalog("lakebed", type="sql", uri=f"sqlite:///{folder}/iceberg/catalog.db")
    return sum(catalog.load_table(("lakebed", name)).scan().count() for name in topics)


def main() -> int:
    """Run the demo and say what was found; 0 if everything is as promised."""
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="lakebed-demo-")) / "log"
    acknowledged: list[tuple[str, bytes]] = []
    table = Table("life", "acknowledged", "then", "found after reopening", "recovery")
    try:
        with console.status("writing and killing…"):
            for life in range(1, LIVES + 1):
                reports = let_it_write_and_kill_it(folder)
                acknowledged += reports
                started = time.perf_counter()
                with lakebed.open(folder) as log:
                    took = f"{(time.perf_counter() - started) * 1000:.0f} ms"
                    records = sum(log.describe_topic(name).records for name in log.topics())
                table.add_row(
                    str(life),
                    f"{len(reports):,} records",
                    "killed (SIGKILL)",
                    f"{records:,} records",
                    took,
                )
        with lakebed.open(folder) as log:
            found = consume(log)
            lag = log.describe_group(GROUP).lag
            report = log.checkpoint()
            topics = log.topics()
        console.print(table)
        in_tables = read_tables(folder, topics)
    finally:
        shutil.rmtree(folder.parent)
    consumed = sum(values.total() for values in found.values())
    missing, wrong = missing_records(found, acknowledged), wrong_records(found)
    console.print(
        f"{consumed:,} records consumed, lag {lag}; "
        f"{found['debits'].total():,} transactions, {wrong} of them twice or half"
    )
    console.print(
        f"{in_tables:,} records counted by pyiceberg in {len(topics)} Iceberg tables "
        f"of {report.segments} files"
    )
    console.print(
        f"{len(acknowledged):,} records acknowledged, "
        f"{len(acknowledged) - len(missing):,} of them found, {len(missing)} missing"
    )
    return 0 if not missing and not wrong and consumed == in_tables else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(sys.argv[1])
    else:
        sys.exit(main())
