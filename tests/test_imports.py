from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_modules_import_each_other_in_a_circle():
    graph = grimp.build_graph("trainbook", exclude_type_checking_imports=True)
    sorter = TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules})
    sorter.prepare()  # CycleError names the modules
