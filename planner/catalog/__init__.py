"""Data sheets of devices and links, and the atoms that common methods need."""

from planner.catalog.atoms import ATOMS, atom
from planner.catalog.devices import device, device_names
from planner.catalog.links import link, link_names

__all__ = ["ATOMS", "atom", "device", "device_names", "link", "link_names"]
