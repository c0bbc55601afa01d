import dagster as dg

CELLS = dg.DynamicPartitionsDefinition(name="cells")
EXPERIMENTS = dg.DynamicPartitionsDefinition(name="experiments")
WORLDS = dg.DynamicPartitionsDefinition(name="worlds")

LINEAGE_ONLY = dg.SpecificPartitionsPartitionMapping([])
"""An edge between partitions of different kinds. A cell stays tied to the snapshot its experiment was locked to, and a table to
its own cells: what happens to other partitions above makes neither out of date."""

UNCHANGING = "INITIAL"
"""The data version of an asset without partitions above cells, at each of its runs. No partition mapping holds there, so a cell would
be out of date an hour later. This one Dagster takes for the same as no materialization at all."""


def unchanged_by(*above: str) -> dict[str, str]:
    """Tags for the materialization of a cell below such assets."""
    versions = {f"dagster/input_data_version/{name}": UNCHANGING for name in above}
    pointers = {f"dagster/input_event_pointer/{name}": "NULL" for name in above}
    return {"dagster/code_version": "1", **versions, **pointers}


def add_partitions(instance: dg.DagsterInstance, definition: dg.DynamicPartitionsDefinition, keys: list[str]) -> None:
    """Add those that are missing, in order. Dagster validates nothing; the keys come from validated names."""
    assert definition.name is not None
    known = set(instance.get_dynamic_partitions(definition.name))
    new = [key for key in keys if key not in known]
    if new:
        instance.add_dynamic_partitions(definition.name, new)
