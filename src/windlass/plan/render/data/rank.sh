# Parts of the rank script. A line `#: NAME` begins a part. `@NAME@` is filled in; alone on a line it stands for lines.
#: fail
w_fail() {
  echo "windlass: rank ${w_rank:-?} on $w_host: $*" >&2
  exit @code@
}
w_host=${SLURMD_NODENAME:-$(uname -n)}; w_host=${w_host%%.*}
#: taskset
if command -v taskset >/dev/null 2>&1; then
  taskset -pc "$w_cpus" $$ >/dev/null 2>&1 || echo "windlass: rank $w_rank cannot have cpus $w_cpus" >&2
else
  [ "$w_rank" = 0 ] && echo "windlass: no taskset on this node, ranks are not bound" >&2
fi
#: workers

# All workers of TensorFlow.
@hosts@
w_workers= w_at=0
for w_line in $w_hosts; do
  w_end=$((w_at + w_ranks_per_node))
  while [ "$w_at" -lt "$w_end" ]; do
    w_at=$((w_at + 1))
    w_workers="$w_workers${w_workers:+, }\"$w_line:$((w_master_port + w_at % 16000))\""
  done
done
#: worker_hosts
w_hosts=
while read -r w_line; do w_line=${w_line%% *}; w_line=${w_line%%:*}; w_hosts="$w_hosts @name@"; done < "$WINDLASS_RUN_DIR/hosts" || w_fail "TF_CONFIG needs the file hosts of the run folder"
#: hook

# For windlass watch: Python finds a start-up hook, and writes its steps into a folder of this node.
w_hook=@folder@"$w_node_rank"
if [ -d "$w_hook/python" ]; then
  echo "$$" > "$w_hook/pids/$w_rank"
  export WINDLASS_STEPS=$w_hook/steps
  export PYTHONPATH="$w_hook/python${PYTHONPATH:+:$PYTHONPATH}"
fi
#: requeue

# The trainer requeues the job after it has saved. windlass submits it again, so its scontrol only reports the save.
export PATH="$WINDLASS_RUN_DIR/@folder@:$PATH"
#: scontrol
#!/bin/sh
# For a trainer that requeues its job after a save: windlass submits the job again.
w_here=${0%/*}
if [ "$1" = requeue ]; then echo "windlass: the trainer has saved" && : > "$w_here/saved"; exit; fi
PATH=${PATH#"$w_here:"} exec scontrol "$@"
#: mps

# MPS: the ranks of a device run at the same time. Without its daemon they run in time slices.
w_mps=@folder@"$w_node_rank"
if [ -d "$w_mps/pipe" ]; then export CUDA_MPS_PIPE_DIRECTORY="$w_mps/pipe" CUDA_MPS_LOG_DIRECTORY="$w_mps/log"; fi
#: where

# What this rank really got, one line in one file per node.
w_got=
while read -r w_key w_value; do [ "$w_key" = Cpus_allowed_list: ] && { w_got=$w_value; break; }; done < /proc/$$/status
@seat@
#: seat
printf '%s\t%s\t%s\t%s\t%s\n' "$w_rank" "$w_host" "$w_got" "$w_device" "@pid@" >> "$WINDLASS_RUN_DIR/where/$w_node_rank" 2>/dev/null || :
#: traps

# This script stays the parent and reports the end: nobody else can wait for the rank.
# A shell starts background commands with SIGINT ignored, so an interrupt is passed on as SIGTERM.
w_child= w_early=
w_forward() { @meant@@held@if [ -n "$w_child" ]; then kill -"$1" "$w_child" 2>/dev/null; else w_early=$1; fi; }
@forward@
#: carrier
# @launcher@ hands on SIG@carrier@ alone, to all processes of the rank; the file says what is meant.
# A rank that leaves when it was asked to must look well: others may need longer, and are not to be ended.
w_asked=
w_carried() {
  { read -r w_meant < "$WINDLASS_RUN_DIR/@file@"; } 2>/dev/null || w_meant=@carrier@
  case $w_meant in TERM|USR2) w_asked=1 ;; esac
  if [ "$w_meant" != TERM ] || [ -z "$w_child" ]; then w_forward "$w_meant"; return; fi
  trap '' TERM; kill -TERM 0
}
trap w_carried @carrier@
#: no_alarm
# At its time limit the launcher sends SIGALRM to all processes: the rank hears it as SIGTERM.
trap '' ALRM
#: alarm
trap 'w_forward TERM' ALRM
#: orders

# Where windlass tells this script to start its rank again, on this node.
w_attempt= w_leaving= w_holding= w_orders="$w_beats/$w_rank.order"
if [ -d "$w_beats" ] && (PATH=$w_path; mkfifo -m 600 "$w_orders") 2>/dev/null; then
  exec 8<>"$w_orders"; echo "$$" > "$w_beats/$w_rank.script"
else
  w_orders=
fi
w_hold() {  # windlass orders the number of the next start, or asks this script to end
  w_holding=1 w_child=
  w_attempt=; read -r w_attempt <&8 || :
  w_holding=
  case $w_attempt in ""|*[!0-9]*) return 1 ;; esac
  export WINDLASS_ATTEMPT=$w_attempt
}
#: standby
# One process of this node imports what the ranks import. It forks when a rank must start again.
if [ -n "$w_orders" ]; then
  export PYTHONPATH="$w_beats/python${PYTHONPATH:+:$PYTHONPATH}"
  if [ "$w_local_rank" = 0 ]; then
    (unset WINDLASS_STEPS; exec @python@ "$w_beats/standby.py" "$w_beats" $$ </dev/null >"$w_beats/standby.log" 2>&1 8>&-) &
    export WINDLASS_MODULES=$w_beats
  fi
fi
w_begin() {
  [ -z "$w_forked" ] || exec "$1" -I -S "$w_beats/standby_ask.py" "$w_beats" "$w_rank" @options@ \
    "$WINDLASS_RUN_DIR/where/$w_node_rank" "$w_rank	$w_host	$w_got	$w_device" "$@"
  exec "$@"
}
#: forked
w_forked=; if [ -n "$w_attempt" ] && [ -S "$w_beats/standby.socket" ]; then w_forked=1; : >> "$WINDLASS_RUN_DIR/where/$w_node_rank"; fi
#: pid
[ -z "$w_orders" ] || echo "$w_child" > "$w_beats/$w_rank.pid"
#: own_seat
if [ -z "$w_forked" ]; then
@seat@
fi
#: loop
while :; do
#: hold
exec 2>&9 9>&-
# A rank that failed on its own waits here. One that was asked to leave, or has left well, does not start again.
if [ -n "$w_leaving" ] || [ -z "$w_orders" ] || [ "$w_code" -eq 0 ] || [ "$w_code" -eq @resume@ ]; then break; fi
w_hold || break
done
exec 9>&2 2>/dev/null
#: start

@no_alarm@
@loop@
@child@
w_child=$!
@pid@
@seat@
@alarm@
# A signal that came before there was a rank; what has not become its program yet would not hear it.
if [ -n "$w_early" ]; then (PATH=$w_path; sleep 1); w_forward "$w_early"; fi
# The shell itself has nothing to say: it would write of a rank that a signal ended.
exec 9>&2 2>/dev/null
wait "$w_child"; w_code=$?
while kill -0 "$w_child" 2>/dev/null; do wait "$w_child"; w_code=$?; done
# A wait that a signal ended says so, even where the rank was gone by then: its own code is asked for again.
if [ "$w_code" -gt 128 ]; then wait "$w_child"; w_last=$?; [ "$w_last" -eq 127 ] || w_code=$w_last; fi
printf '%s\t%s\t%s\t%s\n' "$(PATH=$w_path; date +%s.%N)" "$w_rank" "$w_host" "$w_code" >> "$WINDLASS_RUN_DIR/ends/$w_node_rank" 2>/dev/null || :
@hold@
@late_end@
exec 2>&9 9>&-
@end@
trap - HUP INT TERM USR1 USR2
@asked@
exit "$w_code"
#: asked
[ -z "$w_asked" ] || exit 0
#: last_line
# The end of the output: a last line without its own end would run into the next rank's.
printf '\036\n'; printf '\036\n' >&2
#: late_end
# The launcher kills the other ranks soon after it sees this one fail: windlass, which reads the line above, may
# ask them first. Then all leave without a code, and none is hurried.
w_tries=0
while [ "$w_code" -ne 0 ] && [ -z "$w_asked" ] && [ "$w_tries" -lt 30 ]; do
  (PATH=$w_path; sleep 0.1); w_tries=$((w_tries + 1))
done
#: live_end
# All of its output is handed on before this script ends; a process that it left behind may hold it for ever.
if [ -n "$w_tee" ]; then
  exec >/dev/null 2>&1
  (sleep 2; kill -KILL "$w_tee") & w_limit=$!
  wait "$w_tee"; kill "$w_limit"
fi
#: live_start

# Somebody watches these ranks on a terminal: a copy of what they write shows progress bars while they grow.
w_tee= w_live="$WINDLASS_RUN_DIR/@folder@/$w_rank"
case "$w_rank" in @ranks@)
  if command -v tee >/dev/null && mkfifo -m 600 "$w_live.pipe" 2>/dev/null; then
    (trap '' HUP INT TERM USR1 USR2; exec tee "$w_live") < "$w_live.pipe" &
    w_tee=$!; exec > "$w_live.pipe" 2>&1; rm -f "$w_live.pipe"
  fi ;;
esac
#: live_command
if [ -n "$w_tee" ]; then
  trap : HUP INT TERM USR1 USR2
  "$@"; w_code=$?
@live_end@
  trap - HUP INT TERM USR1 USR2
  if [ "$w_code" -gt 128 ]; then kill -"$((w_code - 128))" $$; fi
  exit "$w_code"
fi
#: same_path_first
  w_kept=@kept@
  mkdir -m 700 "$w_kept" 2>/dev/null
  if [ -O "$w_kept" ] && [ ! -L "$w_kept" ] && [ ! -d "$w_kept/@name@-n$w_node_rank" ]; then
    rm -f "$w_kept/@name@-n$w_node_rank"; ln -s "$WINDLASS_CACHE_DIR" "$w_kept/@name@-n$w_node_rank"
  fi
#: same_path
# Build tools write down the path of what they built, and build again where it is another one.
w_kept=@kept@
if [ -O "$w_kept" ] && [ ! -L "$w_kept" ] && [ "$w_kept/@name@-n$w_node_rank" -ef "$WINDLASS_CACHE_DIR" ]; then WINDLASS_CACHE_DIR=$w_kept/@name@-n$w_node_rank; fi
#: unpack
  if [ -f @archive@ ]; then (
    umask 077; exec 3< @archive@; [ -O /proc/self/fd/3 ] || { echo "windlass: not yours" >&2; exit 1; }
    case $(LC_ALL=C ls -lnL /proc/self/fd/3) in -????-??-*) ;;
    *) echo "windlass: other users can write it" >&2; exit 1 ;; esac
    tar -C "$WINDLASS_CACHE_DIR" -x -o -f - <&3; w_code=$?
    chmod -R ug-s,go-rwx "$WINDLASS_CACHE_DIR"; exit "$w_code"
  ) || echo "windlass: cannot unpack" @archive@", going on without" >&2; fi
#: caches

# Caches of compilers and libraries: on this node, for this run, made before any rank needs them.
w_parent=@parent@
export WINDLASS_CACHE_DIR=$w_parent/n$w_node_rank
mkdir -m 700 "$w_parent" 2>/dev/null || [ -d "$w_parent" ] || w_fail "cannot make $w_parent"
[ -O "$w_parent" ] && [ ! -L "$w_parent" ] || w_fail "$w_parent belongs to another user"
@kept@
mkdir -p @folders@ || w_fail "cannot make the caches in $WINDLASS_CACHE_DIR"
#: leftovers

# Caches of killed runs on this node, unless a process of such a run is still here.
if [ "$w_local_rank" = 0 ]; then
  w_remove() {
    [ -d "$1" ] && [ -O "$1" ] && [ ! -L "$1" ] || return 0
    cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' | grep -qxF "$2" || rm -rf "$1"
  }
@remove@
fi
#: kept_caches
# Saved caches of an earlier job: the first rank of the node unpacks them, the others wait for it.
if [ "$w_local_rank" = 0 ]; then
  mkdir -p "$WINDLASS_CACHE_DIR"
@unpack@
@first@
  : > "$WINDLASS_CACHE_DIR/.ready"
else
  w_tries=0
  until [ -e "$WINDLASS_CACHE_DIR/.ready" ] || [ $w_tries -ge 600 ]; do sleep 0.2; w_tries=$((w_tries + 1)); done
fi
@every@
#: view
w_swap() {  # a path below a root, as this node's view has it, into w_answer; any other path as it is
  w_answer=$1
  case $1 in
@patterns@
  esac
}
w_swap_list() {  # the same for paths with colons between them
  w_rest=$1: w_list=
  while [ -n "$w_rest" ]; do
    w_swap "${w_rest%%:*}"; w_rest=${w_rest#*:}; w_list=$w_list:$w_answer
  done
  w_list=${w_list#:}
}
for w_name in @variables@; do
  eval "w_value=\${$w_name-}"
  [ -n "$w_value" ] && w_swap_list "$w_value" && eval "export $w_name=\$w_list"
done
@fronts@
# Python takes from the view, too, what .pth files and editable installs name by its path.
[ ! -d "$w_front/python" ] || export PYTHONPATH="$w_front/python${PYTHONPATH:+:$PYTHONPATH}"
#: end_launcher
@command@
w_launcher=$!
# When a rank has failed the others are ended: this launcher lets them wait for it.
while kill -0 "$w_launcher" 2>/dev/null; do
  if [ -n "$(@failed@)" ]; then
    sleep 2; kill -TERM "$w_launcher" 2>/dev/null
    sleep @grace@; kill -KILL "$w_launcher" 2>/dev/null
    break
  fi
  sleep 1
done
wait "$w_launcher"; w_code=$?
#: port
w_digits=${WINDLASS_JOB_ID%%[!0-9]*}
# An id that is no number (Flux), or is larger than a shell counts: its checksum.
[ -n "$w_digits" ] && [ ${#w_digits} -le 18 ] || w_digits=$(printf %s "$WINDLASS_JOB_ID" | cksum | cut -d " " -f 1)
w_port=$((@base@ + 10#$w_digits % @span@))
while cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qi "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$w_port") [0-9A-F:]* 0A"; do w_port=$((w_port + 1)); done
export WINDLASS_MASTER_PORT=$w_port
#: found
w_found() {  # is library $1 in LD_LIBRARY_PATH or in one of the other folders?
  w_name=$1; shift; w_dirs=${LD_LIBRARY_PATH-}; for w_dir in "$@"; do w_dirs=$w_dirs:$w_dir; done
  w_ifs=$IFS; IFS=:; set -f; w_answer=1
  for w_dir in $w_dirs; do [ -n "$w_dir" ] && [ -e "$w_dir/$w_name" ] && w_answer=0 && break; done
  IFS=$w_ifs; set +f; return $w_answer
}
#: place
# The numbers of this rank, which @launcher@ sets inside the task.
w_rank=@rank@
[ -n "$w_rank" ] || w_fail @hint@
w_local_rank=@local_rank@
w_node_rank=@node_rank@
w_world_size=@world_size@
w_nodes=@nodes@
w_ranks_per_node=@ranks_per_node@
@seen@
@job_file@
w_master_addr=@master_addr@
w_master_port=@master_port@
w_job_id=@job_id@
export WINDLASS_RUN_DIR=@run_dir@
@view@

#: seen
w_seen=@seen@
[ "$w_seen" = "$w_world_size" ] || w_fail "the launcher started $w_seen ranks, the plan has $w_world_size: its command line was changed"
#: attempt

# For windlass.Snapshot: the run, the number of this start, and the heartbeat file.
export WINDLASS_RUN_ID=@run_id@ WINDLASS_ATTEMPT=@attempt@
export @mark@$w_node_rank
#: beats
w_beats=@folder@"$w_node_rank"
if [ -d "$w_beats" ]; then export WINDLASS_HEARTBEAT=$w_beats/$w_rank; fi
#: activate

# The environment of --activate, which lies on the nodes themselves.
[ -d @folder@ ] || w_fail @gone@
@lines@
#: rendezvous
# Rendezvous: the first host of the job, and a free port on it.
export WINDLASS_JOB_ID=${@variable@:-0}
export WINDLASS_UID=$(id -u)
@host_lines@ > @hosts@ || exit 3
w_first=$(head -n 1 @hosts@); w_first=${w_first%% *}
@short@
#: address_of_interface
w_addr=$(ip -4 -o addr show dev @interface@ 2>/dev/null | awk '{sub("/.*", "", $4); print $4; exit}')
export WINDLASS_MASTER_ADDR=${w_addr:-$w_first}
#: newest
w_newest=$(printf '%s\n' @path@ | sort -V | tail -n 1)
if [ -e "$w_newest" ]; then set -- @words@ "$@"
elif [ "$w_local_rank" = 0 ]; then echo "windlass: $w_host" @missing@ >&2; fi
