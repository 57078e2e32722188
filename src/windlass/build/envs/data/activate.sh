# Activates the environment that this file lies in, wherever that is. For bash and zsh.
if [ -n "${BASH_VERSION:-}" ]; then
  w_self=${BASH_SOURCE[0]}
elif [ -n "${ZSH_VERSION:-}" ]; then
  eval 'w_self=${(%):-%x}'
else
  w_self=${WINDLASS_ACTIVATE:-}
fi
if [ ! -e "$w_self" ]; then
  echo "windlass: this shell does not tell where the environment is: put its bin folder into PATH" >&2
  return 1 2>/dev/null || exit 1
fi
if [ -n "${_OLD_VIRTUAL_PATH:-}" ]; then
  PATH=$_OLD_VIRTUAL_PATH
fi
VIRTUAL_ENV=$(cd "$(dirname "$w_self")/.." && pwd)
_OLD_VIRTUAL_PATH=$PATH
PATH=$VIRTUAL_ENV/bin:$PATH
export VIRTUAL_ENV PATH
unset PYTHONHOME w_self
deactivate() {
  PATH=$_OLD_VIRTUAL_PATH
  export PATH
  unset VIRTUAL_ENV _OLD_VIRTUAL_PATH
  unset -f deactivate
  hash -r 2>/dev/null
}
hash -r 2>/dev/null
