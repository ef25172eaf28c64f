from tests.record import counts

REPORT = """<?xml version="1.0"?><testsuites>
<testsuite name="pytest" tests="10" failures="1" errors="2" skipped="3" time="4.56"/>
</testsuites>"""


def test_a_report_is_counted():
    assert counts(REPORT) == {"passed": 4, "failed": 3, "skipped": 3, "seconds": 4.6}
