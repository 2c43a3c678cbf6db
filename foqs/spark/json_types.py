"""The types of Spark with `payloadFormat=json`: types that are written as by `to_json`, and types that are refused."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from foqs.model.errors import shown

WRITTEN = {
    "boolean": "true or false",
    "tinyint, smallint, int, bigint": "a number",
    "float, double": "a number as Java writes it; NaN and infinities as text",
    "decimal": "a number with all of its digits",
    "string, char, varchar": "text",
    "binary": "base64",
    "date": "`2030-01-31`, of all years",
    "timestamp": "`2030-01-31T12:00:00.000Z`: in UTC, whatever the time zone of the session",
    "timestamp_ntz": "`2030-01-31T12:00:00.000`",
    "time": "`12:34:56.789`",
    "struct": "an object, without the fields that are null",
    "array": "an array",
    "map": "an object; its keys are of one of the types in the first five rows",
    "void": "nothing: it is left out",
}
"""The JSON of each type that is written."""
REFUSED = {
    "variant": "Arrow does not tell it from a struct: use to_json of the column",
    "interval": "cast it to string, or to a number",
    "others": "such as geometries and types of users: cast them to one of those above",
}
"""The remedy for each type that is refused."""
_SCALARS = frozenset(
    ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
     "timestamp_ntz", "void"]
)  # fmt: skip
_WITH_ARGUMENTS = frozenset(["decimal", "char", "varchar", "string", "time"])
_KEYS = frozenset(["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string"])
_KEYS_WITH_ARGUMENTS = frozenset(["decimal", "char", "varchar", "string"])


def json_problems(schema: StructType) -> dict[str, str]:
    """The reasons that columns cannot be JSON, by their names."""
    return {field.name: reason for field in schema.fields if (reason := next(_problems(field.dataType), None))}


def _problems(kind: DataType) -> Iterator[str]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _problems(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _problems(kind.elementType)
    elif isinstance(kind, MapType):
        if not _is_one_of(kind.keyType, _KEYS, _KEYS_WITH_ARGUMENTS):
            yield f"keys of a map cannot be of type {shown(kind.keyType.simpleString())} in JSON: cast them to string"
        yield from _problems(kind.valueType)
    elif not _is_one_of(kind, _SCALARS, _WITH_ARGUMENTS):
        name = kind.simpleString()
        family = "interval" if name.startswith("interval") else name if name in REFUSED else "others"
        yield f"type {shown(name)} cannot be JSON: {REFUSED[family]}"


def _is_one_of(kind: DataType, plain: frozenset[str], with_arguments: frozenset[str]) -> bool:
    name = kind.simpleString()
    return name in plain or name.partition("(")[0].partition(" ")[0] in with_arguments
