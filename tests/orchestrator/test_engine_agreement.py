"""One engine for a study: what most nodes say; another is named with what differs."""

from orchestrator.engine_agreement import Agreement


def said(name: str, version: str = "1") -> dict[str, object]:
    return {"engine_hash": name * 64, "identity": {"distributions": {"torch": version}, "device": {"name": "H200"}}}


def test_the_engine_of_a_study_is_what_most_nodes_say() -> None:
    agreement = Agreement()
    for node, description in (("n0", said("b", "2")), ("n1", said("a")), ("n2", said("a"))):
        agreement.hear(node, description)
    agreement.settle()
    assert agreement.hash == "a" * 64
    assert agreement.differs("n1") == agreement.differs("n2") == ""
    assert "distributions.torch: 1 -> 2" in agreement.differs("n0")


def test_whoever_joins_later_is_held_against_the_first() -> None:
    agreement = Agreement()
    agreement.hear("n0", said("a"))
    agreement.settle()
    for node in ("n1", "n2"):
        agreement.hear(node, said("b", "2"))
    agreement.settle()
    assert agreement.hash == "a" * 64
    assert agreement.differs("n1")


def test_of_a_tie_the_first_that_was_heard_counts() -> None:
    agreement = Agreement()
    agreement.hear("n0", said("b"))
    agreement.hear("n1", said("a"))
    agreement.settle()
    assert agreement.hash == "b" * 64
