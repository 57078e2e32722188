for f in /lib/*-linux-gnu*/libc.so.6 /lib64/libc.so.6 /usr/lib64/libc.so.6 /usr/lib/libc.so.6; do
  [ -x "$f" ] && "$f" 2>/dev/null && break
done
for f in /lib/ld-musl-*; do [ -e "$f" ] && echo "windlass-image musl"; done
IFS=:
set -f
folders=${LD_LIBRARY_PATH-}
set +f
unset IFS
for f in /etc/ld.so.conf /etc/ld.so.conf.d/*.conf; do
  [ -r "$f" ] || continue
  while read -r line; do case $line in /*) folders=$folders:$line ;; esac; done <"$f"
done
folders=$folders:/usr/local/lib
for f in /lib/*-linux-gnu* /usr/lib/*-linux-gnu* /lib64 /usr/lib64 /lib /usr/lib; do folders=$folders:$f; done
IFS=:
for d in $folders; do
  unset IFS
  for f in "$d"/lib*.so*; do [ -e "$f" ] && echo "windlass-image library $f"; done
  IFS=:
done
folders=$folders:@plugin_folders@
for d in $folders; do
  unset IFS
  for f in "$d"/lib?ccl-net*.so*; do
    [ -e "$f" ] || continue
    real=$(readlink -f "$f" 2>/dev/null) || real=$f
    grep -q libfabric.so "$f" 2>/dev/null
    echo "windlass-image plugin $? $real $f"
  done
  IFS=:
done
unset IFS
@variables@
echo "windlass-image end"
