"""`explain` searches, and docs/checks has an index by symptom."""

from __future__ import annotations

import pytest

from ncclcheck.reports.judgement import pages
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.judgement.symptoms import by_symptom, section
from tests.conftest import Command


def test_a_code_gives_its_page_in_any_case() -> None:
    assert pages.answer("hst003").startswith("# HST003: /dev/shm is large enough")


def test_words_give_a_list_with_titles_first() -> None:
    hits = [rule.code for rule in pages.search("bus error")]
    assert hits[0] == "HST003", "the words stand side by side on its page"
    assert {"HST003", "HST012"} <= set(hits)
    assert pages.answer("bus error").startswith(f"{len(hits)} checks speak of 'bus error':")
    titled = [rule.code for rule in pages.search("memory")]
    assert titled.index("HST001") < titled.index("HST003"), "HST001 has the word in its title"


def test_a_word_begins_where_a_word_begins() -> None:
    assert pages.search("stio") == []
    assert [rule.code for rule in pages.search("istio linkerd")] == ["CON005"]
    assert pages.answer("istio linkerd").startswith("# CON005")


@pytest.mark.parametrize("words", ["NET0001", "flux capacitor", ""])
def test_nothing_found_says_what_would_be_understood(words: str) -> None:
    with pytest.raises(KeyError, match="ncclcheck explain"):
        pages.answer(words)


def test_the_command_takes_several_words(ncclcheck: Command) -> None:
    ran = ncclcheck("explain", "bus", "error")
    assert (ran.code, "HST003" in ran.out) == (0, True)
    none = ncclcheck("explain", "flux", "capacitor")
    assert (none.code, none.out) == (2, "")
    assert "'flux capacitor'" in none.err


def test_every_rule_stands_under_a_symptom() -> None:
    rules_of = by_symptom(all_rules())
    assert {rule.code for rules in rules_of.values() for rule in rules} == {rule.code for rule in all_rules()}


@pytest.mark.parametrize(
    ("symptom", "codes"),
    [
        ("My job hangs, or ends in a time-out", {"NET003", "NCC008", "CON001", "CON005", "NCC036"}),
        ("My job cannot start, or its nodes cannot connect", {"NET006", "NCC009", "HST005"}),
        ("My job is slow", {"HST006", "HST008", "NCC010", "NET008"}),
        ("Results are wrong, or the loss becomes nan", {"BEN001", "NCC015", "NCC016", "NCC020"}),
        ("Out of memory, or no space left", {"HST003", "HST004", "STO001", "CON004"}),
        ("My job dies", {"HST007", "HST011", "STO005", "NCC018"}),
        ("A setting does not do what it says", {"NCC003", "NCC021", "NCC023", "NCC024"}),
    ],
)
def test_what_people_look_for_is_there(symptom: str, codes: set[str]) -> None:
    assert codes <= {rule.code for rule in by_symptom(all_rules())[symptom]}


def test_a_section_of_a_page() -> None:
    rule = next(rule for rule in all_rules() if rule.code == "CON005")
    assert section(rule, "What") == "The proxy of Istio or Linkerd inside the pod."


def test_the_index_has_both_orders() -> None:
    index = pages.documents()["index.md"]
    assert index.index("## By symptom") < index.index("### My job is slow") < index.index("## By code")
    assert index.count("- [CON005](CON005.md)") >= 2
