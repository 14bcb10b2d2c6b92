"""The pipeline of the demonstration, as the file that a user would write."""

from __future__ import annotations

from typing import Final

NAME: Final = "shop.toml"
PAID: Final = "paid-orders"
DEAD: Final = "orders-dead"
TABLE: Final = "orders_now"

_FIELDS: Final = "id BIGINT, customer STRING, amount DOUBLE, status STRING"

_TEXT: Final = """\
# What the demonstration runs; try it again: lakebed pipeline run {name} --available-now
name = "shop"
log = "log"
dead_letter = "{dead}"

[source.orders]                 # orders and corrections, as columns
topic = "orders"
decode = "json"
schema = "{fields}"
otherwise = "fail"              # whatever is no order: there is none
batch_records_max = {batch}

[source.changes]                # the same topic with its tombstones
topic = "orders"
decode = "raw"
include = ["key"]
batch_records_max = {batch}

[step.paid]
sql = "SELECT id, customer, amount FROM orders WHERE status = 'paid'"
expect.positive = {{ check = "amount > 0", otherwise = "dead-letter" }}

[step.state]
sql = '''
    SELECT CAST(CAST(key AS STRING) AS BIGINT) AS id,
           now.customer, now.amount, now.status, value IS NULL AS gone
    FROM (SELECT key, value, from_json(CAST(value AS STRING), '{fields}') AS now FROM changes)
'''

[sink.paid]
from = "paid"
topic = "{paid}"
key = "id"

[sink.now]
from = "state"
table = "{table}"               # an Iceberg table with a row for each order,
mode = "current"                # as it is now
key = ["id"]
delete = "gone"
buckets = 4
"""


def text(batch_records: int) -> str:
    """Return the file, for batches of so many records."""
    return _TEXT.format(
        name=NAME, dead=DEAD, paid=PAID, table=TABLE, fields=_FIELDS, batch=batch_records
    )
