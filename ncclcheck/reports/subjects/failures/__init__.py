"""Why a node or a rank failed or fell silent, in the words of what failed."""
