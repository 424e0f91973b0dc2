"""The path from one node to another: routes, neighbours and devices that lead elsewhere or nowhere."""
