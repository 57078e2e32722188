#!/bin/sh
# Makes what the example needs in the current folder: an environment with a package, its archive, and a data set with its archive.
set -e
python3 -m venv --without-pip env
package=$(echo env/lib/python3*/site-packages)/mypackage
mkdir -p "$package" data
echo 'VALUE = 42' > "$package/__init__.py"
tar -C env -czf env.tar.gz .        # conda-pack writes an archive of this shape
for number in 1 2 3 4 5 6 7 8; do echo "sample $number" > "data/$number.raw"; done
tar -C data -cf data.tar .
