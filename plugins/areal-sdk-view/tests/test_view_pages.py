"""The pages in a real browser: every view renders, by keyboard too, and nothing that an agent said acts."""

import shlex
import socket
from pathlib import Path

from click.testing import CliRunner
from view_browser import Page
from view_places import PLACES, check
from view_runs import STEPS, TOKEN, add_failures, evaluate, write_run, write_step

from areal_sdk import Episode, Outcome, Task
from areal_sdk.records import FollowedRun
from areal_sdk.testing import RecordedRun
from areal_sdk_view.answers.held_out import MAX_SIDES
from areal_sdk_view.command import view
from areal_sdk_view.export import export


async def test_every_view_shows_what_it_is_for_and_what_agents_said_stays_text(
    page: Page, address: str
) -> None:
    await page.open(f"{address}/?token={TOKEN}")
    for place, text in PLACES.items():
        await page.go(place)
        shown = await page.text()
        assert text in shown, f"{place}: {shown[:800]}"
        assert (
            await page.run("document.querySelector('#main > div > p.problem')?.innerText") is None
        )
        assert (
            await page.run(
                "document.querySelectorAll('#main script, #main img, #main [onload]').length"
            )
            == 0
        )
        wide = await page.run("document.documentElement.scrollWidth <= innerWidth")
        assert wide, f"{place} is wider than the window"
    assert "token=" not in await page.run("location.href")
    check(page, address)


async def test_a_fault_is_shown_with_its_evidence_which_stays_text(
    page: Page, address: str, runs: Path
) -> None:
    add_failures(runs / "guess-2")
    await page.open(f"{address}/?token={TOKEN}#run/guess-2/why")
    await page.until("document.body.dataset.ready === location.hash")
    shown = await page.text()
    assert "likely agent errors since step" in shown
    assert "agent: ValueError <script>" in shown
    assert "catch what the agent raises" in shown
    assert await page.run("document.querySelectorAll('#main script, #main img').length") == 0
    check(page, address)


async def test_what_goes_wrong_in_a_page_is_seen(page: Page, address: str) -> None:
    await page.open(f"{address}/?token={TOKEN}")
    await page.run("console.error('an error'); setTimeout(() => { throw new Error('thrown') }); 1")
    await page.run(
        "new Promise((done) => { const s = document.createElement('script'); s.textContent = '1'; document.body.append(s); setTimeout(done, 50) })"
    )
    seen = " ".join(page.problems)
    assert "an error" in seen
    assert "thrown" in seen
    assert "Content Security Policy" in seen


async def test_a_record_without_steps_opens_at_its_episodes(
    page: Page, address: str, runs: Path
) -> None:
    run = RecordedRun(runs / "served")
    run.measure(Episode("one", Task("t"), (), Outcome.scored(1.0)))
    run.close()
    for name in ("live.json", "ledger.json"):  # a machine that went down
        (runs / "served" / name).write_text('{"started": 1, "runn')
    await page.open(f"{address}/?token={TOKEN}#run/served")
    await page.until("document.body.dataset.ready === location.hash")
    assert "1 of 1" in await page.text()
    assert await page.run("document.querySelector('.tabs [aria-current]').innerText") == "episodes2"
    await page.go("#run/served/curves")
    assert "No step is made yet" in await page.text()
    assert "No books yet" in await page.text()
    check(page, address)


async def test_a_narrow_window_shows_every_view_without_scrolling_sideways(
    page: Page, address: str
) -> None:
    await page.call(
        "Emulation.setDeviceMetricsOverride",
        width=390,
        height=840,
        deviceScaleFactor=2,
        mobile=True,
    )
    await page.open(f"{address}/?token={TOKEN}")
    for place in PLACES:
        await page.go(place)
        assert await page.run("document.documentElement.scrollWidth <= innerWidth"), place
    check(page, address)


async def test_keys_lead_from_the_runs_to_the_siblings_of_an_episode_and_back(
    page: Page, address: str
) -> None:
    await page.open(f"{address}/?token={TOKEN}")
    for key, place in (
        ("j", ""),
        ("Enter", "#run/guess-"),
        ("2", "/episodes"),
        ("j", "/episodes"),
        ("j", "/episodes"),
        ("Enter", "/episode/train-6.3"),
        ("[", "/episode/train-6.2"),
        ("g", "/group/train-6"),
        ("Escape", "/episodes"),
        ("Escape", "#runs"),
    ):
        before = await page.run("location.hash")
        await page.run("document.body.dataset.ready = document.body.dataset.ready && 'before'")
        await page.press(key)
        await page.until(f"location.hash.includes({place!r})")
        if await page.run("location.hash") != before:
            await page.until("document.body.dataset.ready === location.hash")
    await page.press("?")
    assert "these keys" in await page.text()
    await page.press("Escape")
    check(page, address)


async def test_a_copied_command_is_one_command_whatever_the_id_says(
    page: Page, address: str, runs: Path
) -> None:
    run = RecordedRun(runs / "guess-2")
    run.drop(Episode("x'; rm -rf ~ #", Task("t"), (), Outcome.scored(1.0)), "stale")
    run.close()
    await page.open(f"{address}/?token={TOKEN}#run/guess-2/episodes")
    await page.run("navigator.clipboard.writeText = async (text) => { window.copied = text }; 1")
    await page.press("j")
    await page.press("Enter")
    await page.until("document.body.innerText.includes('Copy command')")
    await page.run(
        "[...document.querySelectorAll('button')].find((b) => b.innerText === 'Copy command').click()"
    )
    words = shlex.split(await page.run("window.copied"))
    assert words[2:] == [str(runs / "guess-2"), "--episode", "x'; rm -rf ~ #"]
    check(page, address)


async def test_a_group_of_failures_leads_to_its_episodes_and_back(page: Page, address: str) -> None:
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/failures")
    await page.press("j")
    await page.press("Enter")
    await page.until("document.body.innerText.includes('18 of 25')")
    await page.run("document.querySelector('.tools a .pill').click()")
    await page.until("location.hash.startsWith('#run/guess-1/failures')")
    await page.until("document.body.innerText.includes('3 groups that ended alike')")
    check(page, address)


async def test_held_out_tasks_of_two_runs_lead_to_both_episodes(
    page: Page, address: str, runs: Path
) -> None:
    evaluate(runs / "guess-1", step=0, rewards={"a": [0, 0], "b": [1]})
    evaluate(runs / "guess-1", step=6, rewards={"a": [1, 0], "b": [1]})
    evaluate(runs / "guess-2", step=6, rewards={"a": [1, 1], "b": [0]})
    await page.open(f"{address}/?token={TOKEN}#compare?run=guess-1&run=guess-2")
    await page.run(
        "[...document.querySelectorAll('a')].find((a) => a.innerText.startsWith('held-out tasks')).click()"
    )
    await page.until("document.body.innerText.includes('2 tasks with a verdict on every side')")
    shown = await page.text()
    assert "1 / 1 21 % to 100 %" in shown.replace("\t", " ")
    assert await page.run("document.documentElement.scrollWidth <= innerWidth")
    choice = "document.querySelector('[aria-label=\"Evaluation of side 1\"]')"
    await page.run(f"{choice}.value = '0'; {choice}.dispatchEvent(new Event('change'))")
    await page.until(
        "location.hash.includes('step=0') && document.body.innerText.includes('0 / 2')"
    )
    await page.press("j")
    await page.press("Enter")
    await page.until("document.body.innerText.includes('b at step 6: 0')")
    assert "b at step 0: 1" in await page.text()
    check(page, address)


async def test_more_runs_than_are_put_side_by_side_have_no_link_to_that(
    page: Page, address: str, runs: Path
) -> None:
    names = [f"many-{n}" for n in range(MAX_SIDES + 1)]
    for name in names:
        RecordedRun(runs / name).close()
    await page.open(f"{address}/?token={TOKEN}")
    for chosen, is_there in ((names[1:], True), (names, False)):
        await page.go("#compare?" + "&".join(f"run={name}" for name in chosen))
        shown = await page.text()
        assert f"{len(chosen)} runs" in shown
        assert ("held-out tasks, side by side" in shown) is is_there
    check(page, address)


async def test_a_log_without_a_line_is_told_from_a_search_that_found_none(
    page: Page, address: str, runs: Path
) -> None:
    log = runs / "guess-1/logs/engine.log"
    for text, said in (("", "This log is empty"), ("ready", "No line that was read has this text")):
        log.write_text(text)
        await page.open(f"{address}/?token={TOKEN}&text={text}#run/guess-1/logs?find=absent")
        await page.until(f"document.querySelector('pre.log')?.innerText.startsWith({said!r})")
    check(page, address)


async def test_the_theme_of_the_system_is_followed_until_another_is_chosen(
    page: Page, address: str
) -> None:
    async def system(theme: str) -> None:
        scheme = {"name": "prefers-color-scheme", "value": theme}
        await page.call("Emulation.setEmulatedMedia", features=[scheme])

    await system("light")
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/curves")
    await system("dark")
    await page.until("document.documentElement.dataset.theme === 'dark'")
    await page.press("d")
    assert await page.run("document.documentElement.dataset.theme") == "light"
    await system("light")
    await system("dark")
    assert await page.run("document.documentElement.dataset.theme") == "light"
    check(page, address)


async def test_a_count_keeps_all_its_digits_and_the_marks_of_an_axis_differ(
    page: Page, address: str
) -> None:
    await page.open(f"{address}/?token={TOKEN}")
    said = "import('/static/parts/words.js').then((w) => [1344, 5.5461, 4.56e-14].map((n) => w.number(n)))"
    assert await page.run(said) == ["1,344", "5.55", "4.6e-14"]
    painted = """(async () => {
        const { chart } = await import('/static/pictures/chart.js');
        const said = [];
        const paint = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...at) { said.push(text); paint.call(this, text, ...at); };
        document.body.append(chart({ title: 'entropy', lines: [{ label: 'entropy', points: [[1, 5.545], [2, 5.551], [3, 5.548]] }] }));
        await new Promise((done) => setTimeout(done, 500));
        CanvasRenderingContext2D.prototype.fillText = paint;
        return said;
    })()"""
    marks = await page.run(painted)
    assert len(marks) == len({*marks}) > 3, marks
    assert [mark for mark in marks if float(mark) < 4] == ["1", "2", "3"]
    check(page, address)


async def test_an_earlier_part_of_a_log_is_read_once_however_often_it_is_asked_for(
    page: Page, address: str, runs: Path
) -> None:
    log = runs / "guess-1/logs/engine.log"
    log.write_text("".join(f"line {n}\n" for n in range(20_000)))
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/logs")
    await page.until("document.querySelector('pre.log')?.innerText.includes('line 19999')")
    button = (
        "[...document.querySelectorAll('button')].find((b) => b.innerText.startsWith('Earlier'))"
    )
    await page.run(f"for (let n = 0; n < 3; n += 1) {button}.click(); 1")
    await page.until(f"!{button}.disabled && document.activeElement === {button}")
    shown = await page.run("document.querySelector('pre.log').textContent")
    assert shown == log.read_text()[-200_000:]
    check(page, address)


async def test_an_episode_is_copied_as_jsonl_as_atif_and_a_turn_as_curl(
    page: Page, address: str
) -> None:
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/episode/train-2.0")
    await page.run("navigator.clipboard.writeText = async (text) => { window.copied = text }; 1")
    copies = [
        ("Copy JSONL", '"reward": 0.0'),
        ("Copy ATIF", '"schema_version": "ATIF-v1.8"'),
        ("curl", 'curl "$OPENAI_BASE_URL/chat/completions"'),
    ]
    for button, part in copies:
        await page.run(
            f"[...document.querySelectorAll('button')].find((b) => b.innerText === {button!r}).click()"
        )
        await page.until(f"window.copied?.includes({part!r})")
    assert "What is 2 times ten?" in await page.run("window.copied")
    check(page, address)


async def test_tokens_are_walked_through_and_recoloured_by_keys(page: Page, address: str) -> None:
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/episode/train-2.0")
    await page.press("n")
    await page.press("n")
    await page.until("document.querySelector('.readout').innerText.includes('token 4, id 10')")
    assert "p 22 %" in await page.text()
    await page.press("c")
    await page.until("location.hash.includes('colour=version')")
    check(page, address)


async def test_the_tokens_that_changed_most_are_walked_through_and_other_weights_chosen(
    page: Page, address: str
) -> None:
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/task/t-1")
    await page.run(
        "[...document.querySelectorAll('p a')].find((a) => a.innerText === 'train-4.0').click()"
    )
    await page.until("document.querySelector('.readout')?.innerText.includes('token 8, id 20')")
    assert "61 % → 90 %" in await page.run("document.querySelector('.readout').innerText")
    await page.press("j")
    await page.press("j")
    await page.until("document.querySelector('.readout').innerText.includes('token 9, id 6')")
    choice = "document.querySelector('[aria-label=\"Weights from\"]')"
    await page.run(f"{choice}.value = 'as sampled'; {choice}.dispatchEvent(new Event('change'))")
    await page.until("location.hash.includes('from=as+sampled')")
    await page.until("document.body.innerText.includes('as sampled')")
    check(page, address)


async def test_an_episode_that_was_not_read_again_has_the_command_that_does(
    page: Page, address: str, runs: Path
) -> None:
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/episode/train-4.1")
    await page.run("navigator.clipboard.writeText = async (text) => { window.copied = text }; 1")
    await page.run(
        "[...document.querySelectorAll('button')].find((b) => b.innerText === 'Copy reread command').click()"
    )
    words = shlex.split(await page.run("window.copied"))
    assert words == ["areal-sdk", "reread", str(runs / "guess-1"), "train-4.1"]
    check(page, address)


async def test_a_live_run_is_shown_as_it_grows(page: Page, address: str, runs: Path) -> None:
    await page.open(f"{address}/?token={TOKEN}#run/guess-2/episodes")
    await page.until("document.body.innerText.includes('25 of 25')")
    run = RecordedRun(runs / "guess-2")
    write_step(run, STEPS + 1)
    await page.until("document.body.innerText.includes('29 of 29')")
    run.close()
    check(page, address)


async def test_evaluations_are_marked_on_the_curves(page: Page, address: str) -> None:
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/curves")
    await page.run("[...document.querySelectorAll('canvas')].at(-1).focus()")
    await page.press("ArrowLeft")
    await page.until("document.body.innerText.includes('evaluation: after')")
    check(page, address)


def test_a_port_that_is_taken_is_named_with_the_cure(runs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(view, [str(runs), "--port", str(taken.getsockname()[1])])
    assert result.exit_code == 2
    assert "address already in use: leave --port out" in " ".join(result.output.split())


async def test_the_list_follows_runs_that_begin_and_are_killed(
    page: Page, address: str, runs: Path
) -> None:
    await page.open(f"{address}/?token={TOKEN}#runs")
    await page.run("document.querySelector('td input').focus()")
    run = FollowedRun(write_run(runs, "guess-3")).run_dir
    lines = run.metrics.read_text().splitlines(keepends=True)
    with run.in_use():
        run.metrics.write_text("".join(lines[:-1]))  # its end is not there yet
        await page.until("document.body.innerText.includes('guess-3')")
        await page.until("document.body.innerText.includes('running')")
    await page.until("document.body.innerText.includes('interrupted')")
    assert await page.run("document.activeElement.ariaLabel") == "Choose guess-2"
    check(page, address)


async def test_an_assistant_opens_a_place_with_its_quote_marked(page: Page, address: str) -> None:
    await page.open(f"{address}/?token={TOKEN}#run/guess-1")
    place = "{run: 'guess-1', episode: 'train-2.0', quote: 'answer is 20'}"
    await page.until("performance.getEntriesByType('resource').length > 0")
    script = f"fetch('/api/view', {{method: 'POST', body: JSON.stringify({place})}}).then((r) => r.json())"
    for _ in range(50):  # the stream of the tab opens after the page
        if (await page.run(script))["tabs"]:
            break
    await page.until("document.querySelector('mark')?.innerText === 'answer is 20'")
    place = "{run: 'guess-1', episode: 'train-2.0', turn: '0'}"
    await page.run(
        f"fetch('/api/view', {{method: 'POST', body: JSON.stringify({place})}}).then(() => 1)"
    )
    await page.until("document.querySelector('.message.here')?.innerText.includes('turn 0')")
    await page.go("#run/guess-1/episode/train-2.0?turn=1")  # the link of a report
    assert "turn 1" in await page.run("document.querySelector('.message.here').innerText")
    check(page, address)


async def test_an_exported_page_is_the_same_without_any_server(
    page: Page, runs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(export(runs / "guess-1", num_episodes=500))
    await page.open(file.as_uri())
    for place, text in PLACES.items():
        if "where" in place or "compare" in place or "names" in place:
            continue  # conditions and other runs need the server
        await page.go(place)
        assert text in await page.text(), place
    check(page, file.as_uri())


async def test_an_exported_page_of_several_runs_opens_with_their_comparison(
    page: Page, runs: Path, tmp_path: Path
) -> None:
    for name, reward in (("guess-1", 0.0), ("guess-2", 1.0)):
        evaluate(runs / name, step=STEPS, rewards={f"e-{n}": [reward] for n in range(4)})
    file = tmp_path / "page.html"
    command = [str(runs / "guess-1"), str(runs / "guess-2"), "--export", str(file)]
    result = CliRunner().invoke(view, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    await page.open(file.as_uri())
    assert "trainer.learning_rate" in await page.text()
    compared = await page.run("location.hash")
    await page.go(compared.replace("#compare", "#compare/tasks"))
    assert "e-3" in await page.text()
    for name in ("guess-1", "guess-2"):
        await page.go(f"#run/{name}/episode/train-4.0")
        assert "train-4.0" in await page.text()
    check(page, file.as_uri())


def test_an_export_names_what_it_is_to_write(runs: Path, tmp_path: Path) -> None:
    missing = tmp_path / "none/page.html"
    result = CliRunner().invoke(view, [str(runs / "guess-1"), "--export", str(missing)])
    assert result.exit_code == 2
    assert f"no directory {missing.parent} for the page: make it first" in result.output
    result = CliRunner().invoke(view, [str(runs), "--export", str(tmp_path / "page.html")])
    assert "give their directories" in result.output
