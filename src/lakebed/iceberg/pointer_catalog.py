"""pyiceberg's catalog over table pointers in the store (`pointers.py`).

A commit writes the new metadata and swaps the pointer that was read when it began. Namespaces need
no objects: a log has two, and both always exist.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.typedef import EMPTY_DICT, Properties

from lakebed.iceberg.pointers import Pointer, TablePointers


class PointerCatalog(MetastoreCatalog):
    """The tables of one namespace. One thread at a time."""

    def __init__(self, name: str, pointers: TablePointers, **properties: str) -> None:
        super().__init__(name, **properties)
        self._pointers = pointers

    def create_table(
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Create a table: its metadata, then its pointer."""
        if location is None:
            raise ValueError("a table needs a location")
        metadata = new_table_metadata(schema, partition_spec, sort_order, location, properties)
        provider = load_location_provider(location, properties)
        metadata_location = provider.new_table_metadata_file_location()
        io = self._load_file_io(location=metadata_location)
        self._write_metadata(metadata, io, metadata_location)
        return self.register_table(identifier, metadata_location)

    def register_table(
        self, identifier: Any, metadata_location: str, overwrite: bool = False
    ) -> Table:
        """Create the pointer of a table whose metadata exists."""
        if overwrite:
            raise NotImplementedError("a table that exists is not replaced")
        if not self._pointers.create(_name(identifier), metadata_location):
            raise TableAlreadyExistsError(f"the table {_name(identifier)} exists")
        return self.load_table(identifier)

    def load_table(self, identifier: Any) -> Table:
        """Return a table as its pointer shows it."""
        return self._load(identifier, self._find(identifier))

    def drop_table(self, identifier: Any) -> None:
        """Drop a table; its files stay."""
        if not self._pointers.drop(_name(identifier)):
            raise NoSuchTableError(f"the table {_name(identifier)} does not exist")

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Write changed metadata, and swap the pointer."""
        identifier = table.name()
        pointer = self._find(identifier)
        current = self._load(identifier, pointer)
        staged = self._update_and_stage_table(current, identifier, requirements, updates)
        if staged.metadata != current.metadata:
            self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            if not self._pointers.swap(_name(identifier), pointer, staged.metadata_location):
                raise CommitFailedException(f"the table {_name(identifier)} has changed")
            current = staged
        result = {"metadata": current.metadata, "metadata-location": current.metadata_location}
        return CommitTableResponse.model_validate(result)

    def list_tables(self, namespace: Any) -> list[Any]:
        """Return the tables, and some that were dropped."""
        levels = Catalog.identifier_to_tuple(namespace)
        return [(*levels, name) for name in self._pointers.names()]

    def _find(self, identifier: Any) -> Pointer:
        pointer = self._pointers.find(_name(identifier))
        if pointer is None:
            raise NoSuchTableError(f"the table {_name(identifier)} does not exist")
        return pointer

    def _load(self, identifier: Any, pointer: Pointer) -> Table:
        io = self._load_file_io(location=pointer.metadata)
        metadata = FromInputFile.table_metadata(io.new_input(pointer.metadata))
        return Table(
            identifier=Catalog.identifier_to_tuple(identifier),
            metadata=metadata,
            metadata_location=pointer.metadata,
            io=self._load_file_io(metadata.properties, pointer.metadata),
            catalog=self,
        )

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        """Do nothing: a namespace needs no object."""

    def _refuse(self, *arguments: Any, **named: Any) -> Any:
        """Refuse what a log never asks for."""
        raise NotImplementedError

    list_namespaces = drop_namespace = _refuse
    load_namespace_properties = update_namespace_properties = _refuse
    rename_table = _refuse
    view_exists = list_views = load_view = register_view = drop_view = _refuse


def _name(identifier: Any) -> str:
    return Catalog.table_name_from(identifier)
