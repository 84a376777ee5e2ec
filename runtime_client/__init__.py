"""The only part that touches torch: describe a module, apply a plan, ask the service."""
