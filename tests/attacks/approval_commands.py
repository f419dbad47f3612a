"""Commands an attacker would like to run unasked, and plain ones that must not be in anybody's way."""

# Each writes, executes something else, leaves the sandbox, or is not plainly understood: a person must be asked.
HARMFUL = r"""
printf -v 'a[$(evil)]' x
printf -v x y
printf -vx y
test -v 'a[$(evil)]'
test -R x
test 'a[$(evil)]' -eq 0
[ -v 'a[$(evil)]' ]
[[ -v 'a[$(evil)]' ]]
uniq a ~/.bashrc
uniq a out
uniq -c a out
uniq -f 1 a out
uniq -- a out
sort -o out a
sort --output=out a
sort -oout a
sort -no out a
sort --compress-program=./evil a
sort --comp=./evil a
sort -T . a
sort --files0-from=list
sort -S 1 a
sed -i s/a/b/ a
sed -n 'w out' a
sed -n '1e evil' a
sed -n '1,5p;w out' a
sed -n 1p -i a
sed -n -e 1p a
sed 's/a/evil/e' a
sed -f script a
sed 1p -n a
find . -delete
find . -exec evil ;
find . -exec rm {} +
find . -execdir evil ;
find . -ok evil ;
find . -fprint out
find . -fprintf out x
find . -fls out
find . -name x -delete
find . -files0-from list
find -f . -delete
grep -f /dev/stdin x a > out
grep --devices=read x
rg --pre=./evil x
rg --pre ./evil x
rg --hostname-bin=./evil x
rg -z x
rg --search-zip x
rg --hyperlink-format=x y
tree -o out
tree -R -L 1
tree --fromfile list -o out
diff -l a b
diff --paginate a b
diff --to-file=x a
file -C -m magic
file -m magic a
file -z a
date -s 2020-01-01
date --set=2020-01-01
date 010100002020
date -us now
date -f list
hostname evil
tail -f a
tail --follow a
tail -n1 --retry -F a
wc --files0-from=list
du --files0-from=list
ls --hyperlink
command evil
command -p evil
command -V -v evil
command -v evil; evil
env
env evil
env -S 'evil'
env -i ./evil
xargs evil
awk 'BEGIN{system("evil")}'
awk '{print > "out"}' a
tee out
dd if=a of=out
cp a b
mv a b
ln -s a b
rm a
touch a
mkdir a
chmod +x a
install a b
rsync a b
tar xf a
unzip a
curl http://x
wget http://x
nc x 1
ssh x
less a
more a
man ls
vi a
ed a
ex a
xxd a out
od -o a
split a
csplit a 1
truncate -s 0 a
shred a
patch -p1
make
make -n
cmake .
cargo check
cargo tree
cargo metadata
cargo --version
go env
go list
go version
go vet
npm ls
npm view x
npm outdated
npx x
pip list
pip list --log out
pip show x
pip freeze
python -c 1
python -m this
python3 --version
node -e 1
perl -e 1
ruby -e 1
sh -c evil
bash -c evil
bash
dash x
source x
. x
eval evil
exec evil
builtin evil
alias ls=evil
unalias ls
function ls { evil; }
ls() { evil; }
export PATH=.
declare x=1
local x
readonly x
read x
mapfile x
trap evil EXIT
set -x
shopt -s expand_aliases
enable -f ./evil.so evil
hash -p ./evil ls
cd /tmp
pushd /tmp
time ls
nohup ls
nice ls
timeout 1 ls
stdbuf -o0 ls
setsid ls
sudo ls
doas ls
strace ls
ltrace ls
script out
watch ls
parallel ls
coproc ls
jobs -x evil
fg
kill 1
git
git -c alias.x=!evil x
git -c core.pager=./evil log
git -C /tmp log
git --exec-path=. log
git --git-dir=evil log
git -p log
git --paginate log
git x
git grep -O./evil x
git grep --open-files-in-pager=./evil x
git grep x
git diff
git diff --output=out
git diff --ext-diff
git diff --no-index a b
git show
git show --textconv
git status
git blame a
git log -p
git log --patch
git log --ext-diff
git log --textconv -p
git log --show-signature
git log --format=%G?
git log --pretty=%GG
git log --output=out
git log --outp=out
git log -L1,2:a
git log -S x
git log -G x
git log --remerge-diff
git log -- a --output=out > out
git branch new
git branch -D main
git branch -d main
git branch -m x
git branch -f main HEAD~1
git branch --edit-description
git branch -u origin
git tag x
git tag -d x
git tag -s x
git tag -v x
git tag -l -d x
git remote add x ext::evil
git remote update
git remote show origin
git remote set-url x y
git ls-files -m
git ls-files -d
git ls-files --with-tree=x
git describe --dirty
git describe --broken
git rev-parse --parseopt
git rev-parse --sq-quote x
git rev-parse --path-format=x
git archive -o out HEAD
git bundle create out HEAD
git fetch
git pull
git push
git stash
git checkout .
git restore a
git reset --hard
git clean -fdx
git apply a
git am a
git commit -m x
git add a
git rm a
git mv a b
git config x y
git config core.pager ./evil
git init
git clone x
git submodule update
git worktree add x
git notes add
git gc
git fsck
git help x
git cat-file --filters HEAD:a
git cat-file --textconv HEAD:a
git shortlog -p
git reflog expire
git bisect run evil
git rebase -x evil HEAD~1
git filter-branch
git difftool
git mergetool
git ls-remote ext::evil
git credential fill
git send-email
git instaweb
git hook run x
git for-each-ref --shell
git update-index --refresh
cat a > out
cat a >out
cat a >> out
cat a >| out
cat a 2> out
cat a &> out
cat a >& out
cat < a
cat <<x
cat <<< x
cat <(evil)
ls 1>out
ls 2>&1 >out
ls 2>/dev/nullx
ls >/dev/null/../x
ls > /dev/null out > x
ls $(evil)
ls `evil`
ls $x
ls ${x:=y}
ls "$(evil)"
ls "`evil`"
ls "${x}"
ls $((x[0]))
ls $'a'
ls *
ls a?
ls [ab]
ls {a,b}
ls ~
ls ~root
ls a=~
ls \a
ls "a\"b"
ls !!
ls ! x
ls # x
ls &
ls & evil
ls && evil
ls || evil
ls; evil
ls | evil
ls |& cat
ls;; evil
ls &&
&& ls
; ls
| ls
ls | sh
echo evil | sh
echo evil | bash
cat a | xargs evil
cat a | tee out
cat a | sort -o out
(ls)
{ ls; }
if ls; then evil; fi
for x in a; do evil; done
while ls; do evil; done
until ls; do evil; done
case a in a) evil;; esac
select x in a; do evil; done
! ls
[[ a ]]
((x=1))
let x=1
FOO=1 ls
LD_PRELOAD=./evil.so ls
PATH=. ls
IFS=x ls
x=1
x+=1
a[0]=1
a[$(evil)]=1 ls
'a=b' ls
./ls
/tmp/evil/ls
evil/ls a
~/ls
'./ls'
""".strip("\n").split("\n")
HARMFUL += [
    "",
    " ",
    "\n",
    "ls\nid",
    "ls\\\n-la",
    "ls\rid",
    "ls\x0bid",
    "ls\x00id",
    "ls\u00a0id;evil",
    "ls 'a\nb'",
    "ls\u2028id",
]
HARMFUL += ["ls '", 'ls "', "ls a'b", "ls\u3000&& evil", "lѕ -la", "ls\u200b", "ls\t\nid"]

# Plain looking: a policy of asking for everything must not ask for these.
HARMLESS = r"""
ls
ls -la
ls -la src tests
ls --color=never -1 'a b'
ls -la | head -20
ls -la 2>/dev/null
ls nothing 2>&1
pwd
pwd -P
whoami
id -u
uname -a
date
date +%Y
date -u '+%F %T'
echo hello 'a $b' "c d"
echo -n x
printf '%s\n' a
true
false || true
cat a.py
cat -n a.py
cat a.py | grep -n def | head -3
cat 'a b' "c d"
head -5 a.py
head -n 5 a.py
head -n5 a.py
head -c 10 a.py
tail -3 a.py
tail -n +2 a.py
wc -l a.py
wc -lc a.py
sort a.py | uniq -c | sort -rn | head
sort -k 2 -t , a.py
sort -u a.py
uniq a.py
uniq -c a.py
cut -d : -f 1 a.py
cut -c1-3 a.py
tr a b
tr -d x
nl -b a a.py
grep -rn def .
grep -rn 'def f' a.py
grep -E 'a|b' a.py
grep -A3 -B 2 def a.py
grep -i --include='*.py' -r def .
grep -c def a.py
find . -name '*.py'
find . -type f -name '*.py' -not -path './x/*' -print
find . -maxdepth 2 -type d
find sub -newer a.py -o -empty
stat a.py
stat -c %s a.py
file a.py
file -b a.py
du -sh .
du -d 1 .
df -h
basename /a/b.py
dirname /a/b
realpath a.py
readlink -f a.py
md5sum a.py
sha256sum a.py
cmp a.py b.py
diff a.py b.py
diff -u a.py b.py
diff -ru sub sub
test -f a.py
test -d sub && echo yes
test -e x || echo no
command -v python3
which ls
sed -n 1,3p a.py
sed -n '2p' a.py
sed -n '2,$p' a.py
git log
git log --oneline -5
git log --oneline -n 5 -- a.py
git log --stat HEAD~1..HEAD
git log --graph --all --decorate --since yesterday
git rev-parse HEAD
git rev-parse --abbrev-ref HEAD
git rev-parse --show-toplevel
git branch
git branch -a
git branch --show-current
git tag
git tag -l
git remote -v
git ls-files
git ls-files -co --exclude-standard
git describe --tags --always
""".strip("\n").split("\n")
