"""`payloadFormat=json` in a real session: each type as Spark's own `to_json` writes it, or refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from foqs import Client
from tests.support.spark_rows import drained, save

pytestmark = [pytest.mark.database]

WRITTEN = {
    "boolean": "true",
    "tinyint": "CAST(-1 AS TINYINT)",
    "smallint": "CAST(1 AS SMALLINT)",
    "bigint": "9223372036854775807",
    "floats": "array(CAST(0.1 AS FLOAT), 1e10F, 16777216F, 1.0e-5F, CAST('3.4028235e38' AS FLOAT), -0.0F)",
    "doubles": "array(0.1D, 1e300D, 1D, 1e7D, 9999999D, 0.001D, 0.0009D, 123456789012.5D, -0.0D, 4.9E-324D)",
    "no_numbers": "array(double('NaN'), double('Infinity'), double('-Infinity'))",
    "decimals": "array(CAST(1.10 AS DECIMAL(38,18)), CAST(0 AS DECIMAL(38,18)), CAST(1e-10 AS DECIMAL(38,18)))",
    "whole_decimal": "CAST(12345678901234567890 AS DECIMAL(38,0))",
    "text": "'a\"b\\\\é/<\\t\\n'",
    "binary": "X'ff00'",
    "dates": "array(DATE'2024-02-29', DATE'0001-01-01', date_add(DATE'9999-12-31', 1), DATE'-0001-03-01')",
    "timestamps": "array(TIMESTAMP'2024-02-29 12:00:00.123456 UTC', TIMESTAMP'1582-10-04 00:00:00 UTC', "
    "TIMESTAMP'12000-01-01 00:00:00 UTC', TIMESTAMP'0001-01-01 00:00:00 UTC')",
    "wall": "TIMESTAMP_NTZ'2024-02-29 12:00:00.123456'",
    "times": "array(TIME'12:34:56.789', TIME'00:00:00')",
    "maps": "array(map('a', 1, 'b', null), map())",
    "map_by_number": "map(1, 'x', -2, 'y')",
    "map_by_double": "map(1.5D, 'x', 1e10D, 'y')",
    "map_by_truth": "map(true, 1)",
    "map_by_decimal": "map(CAST(1.10 AS DECIMAL(10,2)), 1)",
    "struct": "named_struct('a', 1, 'b', CAST(NULL AS INT), 'c', array(named_struct('d', null)))",
    "nothing": "NULL",
    "null_of_type": "CAST(NULL AS DATE)",
    "nested": "array(array(1, NULL), NULL, array())",
}
REFUSED = {
    "parse_json('{}')": "type 'variant' cannot be JSON: Arrow does not tell it from a struct",
    "array(parse_json('1'))": "type 'variant' cannot be JSON",
    "INTERVAL '1-2' YEAR TO MONTH": "type 'interval year to month' cannot be JSON: cast it to string, or to a number",
    "INTERVAL '3' DAY": "type 'interval day' cannot be JSON",
    "map(DATE'2024-01-01', 1)": "keys of a map cannot be of type 'date' in JSON: cast them to string",
    "map(X'ff', 1)": "keys of a map cannot be of type 'binary' in JSON",
    "map('a', map(TIMESTAMP'2024-01-01 00:00:00', 1))": "keys of a map cannot be of type 'timestamp' in JSON",
}


def test_every_type_is_written_as_spark_itself_writes_it(
    spark: Any, address: str, namespace: str, client: Client
) -> None:
    columns = [f"{expression} AS `{name}`" for name, expression in WRITTEN.items()]
    rows = spark.range(1).selectExpr(*columns)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    (expected,) = [row.json for row in rows.selectExpr("to_json(struct(*)) AS json").collect()]
    save(rows, address, namespace, topic="json", payloadFormat="json")
    (item,) = drained(client, namespace)
    assert item.payload.decode() == expected


@pytest.mark.parametrize("expression", REFUSED)
def test_a_type_that_cannot_be_written_is_refused_by_its_name(
    spark: Any, address: str, namespace: str, expression: str
) -> None:
    rows = spark.range(1).selectExpr("id", f"{expression} AS odd")
    with pytest.raises(Exception, match="column 'odd'") as caught:
        save(rows, address, namespace, topic="json", payloadFormat="json")
    assert REFUSED[expression] in str(caught.value)
