// Before the first paint: the theme that was chosen on this machine, else the system's.
const chosenTheme = localStorage.getItem("trainbook-theme");
if (chosenTheme === "light" || chosenTheme === "dark") document.documentElement.dataset.theme = chosenTheme;
