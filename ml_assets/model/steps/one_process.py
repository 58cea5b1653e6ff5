"""Detection of scripts that would train the same model on every worker, from their text, before a launch.

Only certain cases count. The check passes a script as soon as it mentions ranks, a lock or a process id, starts or
joins processes, or imports a package that is not listed here.
"""

import ast
from collections.abc import Iterator, Sequence

from ml_assets.foundation.code.reach import imports_of, reached_by
from ml_assets.foundation.code.syntax import nodes_of, parse

_TRAIN_ALONE = ("lightgbm", "xgboost", "sklearn", "catboost")
_JOIN_NOTHING = {
    "joblib", "matplotlib", "narwhals", "numpy", "onnx", "onnxconverter_common", "onnxmltools", "onnxruntime", "pandas",
    "polars", "pyarrow", "pydantic", "rich", "scipy", "skl2onnx", "tqdm", "yaml",
}  # fmt: skip
_MAY_JOIN = {
    "asyncio", "concurrent", "ctypes", "ftplib", "http", "importlib", "multiprocessing", "runpy", "smtplib", "socket",
    "socketserver", "sqlite3", "ssl", "subprocess", "telnetlib", "urllib", "xmlrpc",
}  # fmt: skip
"""Python modules that reach other processes or other code."""
_TELLS_RANKS_APART = (
    "rank", "world", "machine", "host", "peer", "collective", "nodeid", "nodename", "getnode", "uname", "platform",
    "uuid", "temp", "pid", "lock", "exist_ok", "glob", "iterdir", "listdir", "scandir", "walk",
)  # fmt: skip
"""Parts of names, attributes, keywords or texts that may identify a worker, or find files of another worker."""
_READS_BY_TEXT = {"getattr", "vars", "globals"}
"""Names that read other names from text. An `exec` is refused earlier, since a script with one has no version."""
_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}
_ONE_VARIABLE = {"get", "pop", "setdefault"}


def one_process_library(script: str) -> str | None:
    """Return the library of the `script` if its workers can neither tell themselves apart nor join; else None.

    Such workers all do the same work. The check follows imports of the project's modules, except the platform's.
    """
    reached = reached_by([script], without=["ml_assets.model.training", "resources"])
    found = [name for name in _TRAIN_ALONE if name in reached.packages]
    if not found or reached.packages - {*_TRAIN_ALONE, *_JOIN_NOTHING}:
        return None
    for name, file in reached.modules.items():
        body = parse(file).body
        imported = {one.partition(".")[0] for one in imports_of(body, name, file)}
        if imported & _MAY_JOIN or _may_tell_apart([node for part in body for node in nodes_of(part)]):
            return None
    return found[0]


def _may_tell_apart(nodes: Sequence[ast.AST]) -> bool:
    named = {id(part) for node in nodes for part in _reads_named_variable(node)}
    texts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings: for people alone
    for node in nodes:
        if id(node) in texts:
            continue
        word = _last_name(node)
        if word in _READS_BY_TEXT or (word in _ENVIRONMENT and id(node) not in named):
            return True
        if any(part in word.lower() for word in _words(node) for part in _TELLS_RANKS_APART):
            return True
    return False


def _reads_named_variable(node: ast.AST) -> Iterator[ast.AST]:
    """Yield `os.environ` of `os.environ["HOME"]` and `os.getenv` of `os.getenv("HOME")`: the variable's name
    decides."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        yield node.value
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        yield node.func
        if isinstance(node.func, ast.Attribute) and node.func.attr in _ONE_VARIABLE:
            yield node.func.value


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.alias) and node.asname:
        return node.name
    return getattr(node, "attr", "") or getattr(node, "id", "")


def _words(node: ast.AST) -> Iterator[str]:
    for field in ("id", "attr", "arg", "name", "asname"):
        word = getattr(node, field, None)
        if isinstance(word, str):
            yield word
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
