"""What commands print: from documents of the contract to renderables of rich."""
