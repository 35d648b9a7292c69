"""What harnesses do, as their calls are recorded: sub-agents, compactions, errands. No name of a harness is needed
where the flow of data tells; where a test gives one, its profile's own table is read."""

import pytest
from recorded_calls import Record, assistant, result, system, tool, user

from qwengyre import profiles
from qwengyre.trajectory.roles import AUXILIARY, MAIN, SUB_AGENT, Table
from qwengyre.trajectory.tree import ROOT

TASK = "Fix the parser of the configuration files."
SUBTASK = "Find every caller of parse() and list the files."
SUMMARY = "The parser was fixed in parse.py; the tests of the lexer still fail."


def names(record: Record, rows: list[int], table: Table | None = None) -> list[str]:
    found = record.roles(*([table] if table else []))
    return [found[row].role for row in rows]


def of(harness: str) -> Table:
    return Table.of(profiles.told(harness))


@pytest.mark.parametrize("first", [SUBTASK, f"Start-up parts: the date, a listing.\n{SUBTASK}"])
def test_a_sub_agent_is_told_an_argument_of_an_open_call(first):
    record = Record()
    main = record.call(ROOT, user(TASK), makes=(tool("c1", prompt=SUBTASK),))
    sub = record.call(ROOT, system("You search."), user(first), text="a.py, b.py", thread="s")
    after = record.call(main, result("c1", "a.py, b.py"), text="Done.")
    assert names(record, [sub, after]) == [SUB_AGENT, MAIN]
    assert "call 0" in record.roles()[sub].evidence


def test_a_sub_agent_in_the_background_is_told_by_a_call_that_was_closed():
    record = Record()
    main = record.call(ROOT, user(TASK), makes=(tool("c1", prompt=SUBTASK),))
    after = record.call(main, result("c1", "launched"), text="I wait.")
    sub = record.call(ROOT, system("You search."), user(SUBTASK), text="a.py", thread="s")
    assert names(record, [sub, after]) == [SUB_AGENT, MAIN]
    assert "result was known" in record.roles()[sub].evidence


def test_the_call_that_still_waits_is_the_one_that_told():
    record = Record()
    main = record.call(ROOT, user(TASK), makes=(tool("c1", prompt=SUBTASK),))
    other = record.call(ROOT, user("Another."), makes=(tool("c2", prompt=SUBTASK),))
    record.call(other, result("c2", "none"), text="Done.")
    sub = record.call(ROOT, user(SUBTASK), thread="s")
    assert record.roles()[sub].evidence.endswith("of call 0")
    assert record.tree.calls[main] == 0


def test_a_sub_agent_with_the_threads_own_fingerprint_is_told_by_flow_alone():
    record = Record()
    record.call(ROOT, user(TASK), makes=(tool("c1", prompt=SUBTASK),))
    sub = record.call(ROOT, user(SUBTASK), text="a.py")
    again = record.call(ROOT, user("Something else altogether."), text="b.py")
    assert names(record, [sub, again]) == [SUB_AGENT, MAIN]


def test_what_quotes_an_argument_is_no_sub_agent():
    record = Record()
    record.call(ROOT, user(TASK), makes=(tool("c1", prompt=SUBTASK),))
    root = record.call(ROOT, user(f"So far: {SUBTASK} And then more."))
    assert names(record, [root]) == [MAIN]


def test_a_summary_reappears_in_a_new_root_of_another_thread():
    """The summary was asked for under another system text (qwen-code), a new context begins with it."""
    record = Record()
    main = record.call(ROOT, system("Main."), user(TASK), makes=(tool("c1", command="make"),))
    main = record.call(main, result("c1", "3 failed"), makes=(tool("c2", command="vi parse.py"),))
    asked = [user(TASK), assistant("", "c1"), result("c1", "3 failed"), user("Summarise the conversation.")]
    wrapped = f"<analysis>I think.</analysis>\n<summary>\n{SUMMARY}\n</summary>"
    summary = record.call(ROOT, system("You summarise."), *asked, text=wrapped, thread="s", tools=[])
    root = record.call(ROOT, system("Main again, later."), user(f"Summary:\n{SUMMARY}\nGo on."), thread="u")
    assert names(record, [main, summary, root]) == [MAIN, "main-summary", MAIN]
    found = record.roles()
    assert "appears again in the new context of call 3" in found[summary].evidence
    assert "a summary of call 2" in found[root].evidence


def test_a_summary_as_the_assistants_own_words():
    """The transcript as text, then a new context in which the summary is an assistant message (opencode)."""
    record = Record()
    main = record.call(ROOT, system("Main."), user(TASK), makes=(tool("c1", command="make"),))
    main = record.call(main, result("c1", "3 failed"), text="I see three failures.")
    transcript = f"user: {TASK}\nassistant: calls make\ntool: 3 failed\nassistant: I see three failures."
    summary = record.call(ROOT, system("You condense."), user(transcript), text=SUMMARY, thread="s", tools=[])
    root = record.call(ROOT, system("Main."), user("What did we do?"), assistant(SUMMARY), user("Go on."), thread="u")
    assert names(record, [main, summary, root]) == [MAIN, "main-summary", MAIN]


def test_a_transcript_makes_no_summary_of_what_it_holds():
    record = Record()
    main = record.call(ROOT, user(TASK), text="I fixed the parser, and its tests.")
    other = record.call(ROOT, user(f"Rate this.\nuser: {TASK}\nassistant: I fixed the parser, and its tests."))
    assert names(record, [main, other])[0] == MAIN


def test_a_transcript_that_quotes_a_sub_agents_report_makes_no_summary_of_it():
    """The transcript has the report as a tool's result, and not what the sub-agent had seen (opencode)."""
    report = "The callers of parse() are a.py and b.py."
    record = Record()
    main = record.call(ROOT, system("Main."), user(TASK), makes=(tool("c1", prompt=SUBTASK),))
    sub = record.call(ROOT, user(SUBTASK), makes=(tool("c2", command="grep -r parse ."),), thread="s")
    sub = record.call(sub, result("c2", "a.py:3\nb.py:9"), text=report, thread="s")
    main = record.call(main, result("c1", f"<report>\n{report}\n</report>"), makes=(tool("c3", command="make"),))
    transcript = user(f"user: {TASK}\nassistant: calls task\ntool: <report>\n{report}\n</report>")
    summary = record.call(ROOT, system("You condense."), transcript, text=SUMMARY, tools=[])
    root = record.call(ROOT, system("Main."), user("What did we do?"), assistant(SUMMARY), user("Go on."))
    assert names(record, [main, sub, summary, root]) == [MAIN, SUB_AGENT, "main-summary", MAIN]


def test_a_summary_comes_after_what_the_new_context_keeps():
    """A kept tail, and a summary that was asked for after it (claude-code)."""
    record = Record()
    main = record.call(ROOT, user(TASK), makes=(tool("c1", command="make"),))
    leaf = record.call(main, result("c1", "3 failed"), makes=(tool("c2", command="vi parse.py"),))
    summary = record.call(main, result("c1", "3 failed"), user("Now condense."), text=SUMMARY)
    root = record.call(ROOT, user(SUMMARY), assistant("", "c2"), result("c2", "saved"), text="Done.", thread="u")
    assert names(record, [leaf, summary, root]) == [MAIN, "main-summary", MAIN]


def test_an_answer_half_of_which_comes_again_is_a_summary_and_less_is_not():
    lines = ["The first half of it, as it was.", "Another half that is left out."]
    short = "And one more."
    lines.append(short)
    for kept, role in ((f"{lines[0]}\n{short}", "main-summary"), (lines[0][:20], MAIN), (short, MAIN)):
        record = Record()
        main = record.call(ROOT, user(TASK), user("Condense."), text="\n".join(lines))
        record.call(ROOT, user(f"So far: {kept}"))
        assert names(record, [main]) == [role]


def test_a_summary_of_a_sub_agent():
    record = Record()
    record.call(ROOT, user(TASK), makes=(tool("c1", prompt=SUBTASK),))
    sub = record.call(ROOT, user(SUBTASK), makes=(tool("c2", command="grep -r parse ."),), thread="s")
    asked = user("Summarise what you know.")
    summary = record.call(sub, result("c2", "a.py\nb.py"), asked, text=SUMMARY, thread="s")
    root = record.call(ROOT, system("Anew."), user(f"Before: {SUMMARY}"), thread="v")
    assert names(record, [summary, root]) == ["sub-agent-summary", SUB_AGENT]


def test_history_that_is_sent_again_stays_in_its_line():
    """The system text changed, so that all is rendered anew: by tool-call ids, or by question and answer."""
    record = Record()
    first = record.call(ROOT, system("Monday."), user(TASK), makes=(tool("c1", command="make"),))
    told = (user(TASK), assistant("", "c1"), result("c1", "ok"))
    second = record.call(ROOT, system("Tuesday."), *told, text="All is well.", thread="u")
    third = record.call(
        ROOT, system("Friday."), *told, assistant("All is well."), user("Really?"), text="Yes.", thread="v"
    )
    assert names(record, [first, second, third]) == [MAIN] * 3
    assert "history of call 1" in record.roles()[third].evidence


def test_a_title_that_no_table_knows_goes_nowhere():
    record = Record()
    title = record.call(ROOT, system("Name this talk."), user(TASK), text="Parser", thread="n", tools=[])
    main = record.call(ROOT, system("Main."), user(TASK), text="Done.")
    assert names(record, [title, main]) == [AUXILIARY, MAIN]


def test_a_first_call_without_tools_that_the_history_goes_on_with_is_main():
    record = Record()
    plain = record.call(ROOT, user(TASK), text="I will need tools.", tools=[], thread="n")
    main = record.call(ROOT, user(TASK), assistant("I will need tools."), user("Here they are."))
    assert names(record, [plain, main]) == [MAIN, MAIN]


def test_a_harness_without_tools_has_no_auxiliary_calls():
    record = Record()
    main = record.call(ROOT, user(TASK), text="ls", tools=[])
    other = record.call(ROOT, system("Another."), user("List what you need."), thread="s", tools=[])
    assert names(record, [main, other]) == [MAIN, SUB_AGENT]


def test_what_a_request_says_of_itself_comes_before_everything_else():
    record = Record()
    kind = "header:x-claude-code-request-class"
    record.call(ROOT, user(TASK), makes=(tool("c1", prompt=SUBTASK),))
    main = record.call(ROOT, user(SUBTASK), signals={kind: "main"})
    title = record.call(ROOT, user("Anything."), signals={kind: "auxiliary"})
    sub = record.call(ROOT, system("You are a title generator."), user("x"), signals={kind: "subagent"})
    assert names(record, [main, title, sub]) == [MAIN, AUXILIARY, SUB_AGENT]
    assert f"{kind}=main" in record.roles()[main].evidence


@pytest.mark.parametrize(
    ("harness", "table_says", "without"),
    [("qwen-code", "main-summary", AUXILIARY), ("pi", "main-summary", AUXILIARY)],
)
def test_a_profiles_markers_are_data(harness, table_says, without):
    """A summary that no context goes on with: only the table of its harness tells it."""
    record = Record()
    record.call(ROOT, system("Main."), user(TASK), text="Done.")
    last = record.call(ROOT, system("Short."), user("Condense all of it, please."), thread="s", tools=[])
    assert names(record, [last], of(harness)) == [table_says]
    assert names(record, [last]) == [without]


def test_an_errand_of_the_table_is_auxiliary_although_it_holds_the_history():
    record = Record()
    first = record.call(ROOT, system("Main."), user(TASK), makes=(tool("c1", command="make"),))
    told = (user(TASK), assistant("", "c1"), result("c1", "ok"))
    memory = record.call(ROOT, system("Extract durable memory."), *told, thread="m")
    assert names(record, [first, memory], of("qwen-code")) == [MAIN, AUXILIARY]
    assert names(record, [first, memory]) == [MAIN, MAIN]


def test_leaves_that_their_line_went_on_without_are_marked():
    record = Record()
    first = record.call(ROOT, user(TASK))
    cut = record.call(first, user("More."))  # asked again with the same prompt: superseded
    again = record.call(record.tree.parents[cut], text="Ok")
    dropped = record.call(again, user("What now?"))  # left out of the history: a dead end
    last = record.call(again, user("That was malformed."))
    found = record.roles()
    assert {leaf: (found[leaf].mark, found[leaf].by) for leaf in found} == {
        cut: ("superseded", 2),
        dropped: ("dead end", 4),
        last: ("", -1),
    }
    assert {role.role for role in found.values()} == {MAIN}


def test_a_first_call_that_is_asked_again_is_superseded_in_its_own_line():
    record = Record()
    first = record.call(ROOT, user(TASK))
    record.call(record.tree.parents[first])
    assert record.roles()[first][2:] == ("superseded", 1)


def test_a_summary_and_a_sub_agent_are_no_way_around_a_leaf():
    record = Record()
    main = record.call(ROOT, user(TASK), makes=(tool("c1", prompt=SUBTASK),))
    leaf = record.call(main, result("c1", "ok"), text="I go on.")
    record.call(main, user("Respond with text only: a summary."), text=SUMMARY)
    record.call(ROOT, user(SUBTASK), thread="s")
    assert {role.mark for role in record.roles().values()} == {""}
    assert record.roles()[leaf].role == MAIN
