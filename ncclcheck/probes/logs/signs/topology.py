"""Files of XML that NCCL was given: the topology of the machine, and the graphs of its rings and trees."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

_WARN = "elm4:311:340 [0] graph/xml.cc:66 NCCL WARN "

SIGNS = (
    Sign(
        "xml-malformed",
        r"XML (?:Parse(?: error)? ?: (?!Ignoring)|Mismatch : )(?P<error>.{3,160})"
        r"|XML (?:Topology|Graph) has wrong version (?P<version>-?\d{1,9}), (?P<wanted>\d{1,9}) needed"
        r"|XML parser is limited to \d{1,6} (?P<limit>nodes|subnodes)"
        r"|(?P<system>system node not found in XML)|Attribute (?P<attribute>\w{1,40}) of node (?P<node>\w{1,40}) not found",
        (
            _WARN + "XML Parse : Unexpected EOF",
            _WARN + "XML Parse error : expecting '<', got '#'",
            _WARN + "XML Mismatch : pci / cpu",
            _WARN + "XML Topology has wrong version 2, 1 needed",
            _WARN + "Error : XML parser is limited to 1024 nodes",
            _WARN + "ncclTopoGetSystemFromXml: system node not found in XML",
            _WARN + "Attribute arch of node cpu not found",
        ),
        words=("xml parse", "xml mismatch", "xml topology", "xml graph", "not found in xml", "attribute "),
    ),
    Sign(
        "xml-other-machine",
        r"XML Import Channel : dev (?P<device>-?\d{1,9}) not found|could not find CPU numa ID"
        r"|Could not open XML graph file (?P<graph>\S{1,200})",
        (
            "elm4:311:340 [0] graph/search.cc:703 NCCL WARN XML Import Channel : dev 1 not found.",
            _WARN + "GetXmlFromCpu : could not find CPU numa ID.",
            _WARN + "Could not open XML graph file /opt/topo/graph.xml : No such file or directory",
        ),
    ),
    Sign(
        "paths-not-found",
        r"Failed to find reverse path from|Could not find rev link for|No path computed to go from",
        (
            "Failed to find reverse path from remNode 0/5f000 nlinks 4 to node 0/cb000",
            "elm4:311:340 [0] graph/paths.cc:62 NCCL WARN Could not find rev link for 2/0 -> 2/1",
        ),
    ),
    Sign(
        "nccl-one",
        r"compiled with NCCL 1\.\d|WARN src/core\.cu:\d{1,5}",
        (
            "# NCCL Tests compiled with NCCL 1.0",
            "WARN src/core.cu:225 failed to allocate 2101248 byte device buffer",
        ),
    ),
    Sign(
        "xml-setting",
        r"(?P<name>NCCL_(?:TOPO|GRAPH)_FILE) set by environment to (?P<path>\S{1,300})",
        ("elm4:311:340 [0] NCCL INFO NCCL_GRAPH_FILE set by environment to /opt/microsoft/ncv4/graph.xml",),
    ),
)
