"""Reports: read run directories and write one HTML page and its figures."""

from madao.errors import ReportError
from madao.report.run import Run, find_runs, read_run
from madao.report.write import write_report

__all__ = ["ReportError", "Run", "find_runs", "read_run", "write_report"]
