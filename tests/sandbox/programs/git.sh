set -euo pipefail
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q -b main one && cd one
for i in 1 2 3; do echo $i >$i; git add . && git commit -q -m $i; done
git checkout -q -b side HEAD~1 && echo side >side && git add . && git commit -q -m side
git checkout -q main && git merge -q --no-edit side && git rebase -q HEAD~1 && git stash list && git gc -q --aggressive
git worktree add -q ../tree side && git fsck --no-progress && git grep -q side && git log --stat -p >/dev/null && git bisect start HEAD HEAD~1 >/dev/null
cd .. && git clone -q one two && git clone -q "file://$PWD/one" three && git -C three pull -q && git -C two status --porcelain
