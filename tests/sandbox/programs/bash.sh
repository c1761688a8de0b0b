set -euo pipefail
diff <(echo a) <(echo a)
coproc cat; echo through >&"${COPROC[1]}"; read -r back <&"${COPROC[0]}"; [ "$back" = through ]
mkfifo fifo; (echo fifo >fifo &); [ "$(cat fifo)" = fifo ]
trap 'caught=1' USR1; kill -USR1 $$; [ "$caught" = 1 ]
(ulimit -n 100; ulimit -v 1000000; true)
set -m; sleep 0.01 & wait $!
timeout 5 sleep 0.01; nice true; nohup true 2>/dev/null; setsid true; stdbuf -o0 true
find . -name x -exec true {} +; printf '1\n2\n' | xargs -P 2 -n 1 true; sort --parallel=2 /etc/passwd | sha256sum >/dev/null
tar cf - /etc/passwd 2>/dev/null | gzip | tar tzf - >/dev/null; truncate -s 1M big; fallocate -l 1M big; cp --sparse=always big small
ln -s big link; stat -L link >/dev/null; touch -d yesterday big; chmod 600 big; flock big true; df . >/dev/null; ps aux >/dev/null
